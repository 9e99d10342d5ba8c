//! Network namespaces of containers, and work inside them.

use crate::error::{Context, Error};
use rtnetlink::Handle;
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A network namespace of a container.
#[derive(Debug)]
pub(crate) struct Netns {
    descriptor: OwnedFd,
    path: PathBuf,
    /// Inode number, which identifies the namespace.
    pub inode: u64,
}

impl Netns {
    /// Opens the namespace at `path`.
    ///
    /// # Errors
    /// [`Error::Container`]: there is none, or it is this process's own, which belongs to no container.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let error = |reason: String| Error::Container { path: path.display().to_string(), reason };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let descriptor = open(path, flags, Mode::empty()).map_err(|e| error(e.to_string()))?;
        let [it, own] = [fstat(&descriptor), rustix::fs::stat("/proc/self/ns/net")]
            .map(|stat| stat.map_err(|e| error(e.to_string())));
        let (it, own) = (it?, own?);
        if (it.st_dev, it.st_ino) == (own.st_dev, own.st_ino) {
            return Err(error("it is the host's own".to_owned()));
        }
        // All namespaces are on one file system.
        if it.st_dev != own.st_dev {
            return Err(error("it is another kind of file".to_owned()));
        }
        Ok(Self { descriptor, path: path.to_owned(), inode: it.st_ino })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Does `work` in the namespace, on a thread of its own.
    pub(crate) fn work<T: Send>(
        &self,
        work: impl AsyncFnOnce(Handle) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        on_thread(Some(self.as_fd()), work)
    }
}

/// Does `work` in the host's namespace.
pub(crate) fn on_host<T: Send>(
    work: impl AsyncFnOnce(Handle) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    on_thread(None, work)
}

fn on_thread<T: Send>(
    namespace: Option<BorrowedFd<'_>>,
    work: impl AsyncFnOnce(Handle) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let run = || {
        if let Some(namespace) = namespace {
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
                .context(|| "entering the container's network namespace".to_owned())?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.context(|| "no runtime".to_owned())?.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().context(|| "netlink".to_owned())?;
            tokio::spawn(connection);
            work(handle).await
        })
    };
    std::thread::scope(|scope| {
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_namespace_of_a_container_is_refused() {
        for path in ["/nowhere", "/dev/null", "/", "/proc/self/ns/net", "/proc/self/ns/uts"] {
            let result = Netns::open(Path::new(path)).and_then(|it| it.work(async |_| Ok(())));
            assert!(result.is_err(), "{path}");
        }
    }
}
