//! The objects of a context, by the handles in events.

use crate::completion::Cq;
use crate::queue_pair::Qp;
use crate::shared_receive::Srq;
use std::collections::HashMap;
use std::ptr::NonNull;

/// Objects of one kind, from their creation until their destruction starts.
pub struct Table<T>(HashMap<u32, NonNull<T>>);

// SAFETY: the objects may be used from any thread; they are alive while in the table.
unsafe impl<T: Sync> Send for Table<T> {}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Table<T> {
    /// Adds an object that was just created.
    pub fn insert(&mut self, handle: u32, object: *mut T) {
        self.0.extend(NonNull::new(object).map(|object| (handle, object)));
    }

    /// Removes this object. The device may already have given its handle to a newer object, which then stays.
    pub fn remove(&mut self, handle: u32, object: &T) {
        if self.0.get(&handle) == Some(&NonNull::from(object)) {
            self.0.remove(&handle);
        }
    }

    pub fn get(&self, handle: u32) -> Option<&T> {
        // SAFETY: alive while in the table, which is borrowed.
        self.0.get(&handle).map(|object| unsafe { object.as_ref() })
    }

    pub fn all(&self) -> impl Iterator<Item = &T> {
        // SAFETY: alive while in the table, which is borrowed.
        self.0.values().map(|object| unsafe { object.as_ref() })
    }
}

#[derive(Default)]
pub struct Objects {
    pub cqs: Table<Cq>,
    pub qps: Table<Qp>,
    pub srqs: Table<Srq>,
}
