//! Owns what the device knows of a program: who it is, its process, whose memory it was given, its description. May
//! import `window`, `base`.

pub(crate) mod description;
pub(crate) mod grants;
pub(crate) mod who;
