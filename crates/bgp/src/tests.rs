//! Speakers joined back to back, by a network and a clock of the tests.

mod fuzz;
mod malformed;
mod model;
mod net;
mod paths;
mod plain;
mod ranges;
mod raw;
mod routers;
mod routes;
mod sessions;
mod weights;
mod wire;
