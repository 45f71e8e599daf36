//! The native core of modelyard's server: it owns bytes, queues and the clock; Python owns models and meaning.

#[cfg(feature = "python")]
mod batch;
#[cfg(feature = "python")]
mod core;
pub mod cost;
pub mod forms;
pub mod frame_budget;
pub mod histogram;
#[cfg(feature = "python")]
mod host;
#[cfg(feature = "python")]
mod predict;
#[cfg(feature = "python")]
mod record;
#[cfg(feature = "python")]
mod server;
#[cfg(feature = "python")]
mod statistics;
#[cfg(feature = "python")]
mod threads;
#[cfg(feature = "python")]
mod traffic;
#[cfg(feature = "python")]
mod transport;

#[cfg(feature = "python")]
#[pyo3::pymodule]
mod modelyard_core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::forms::python::forms;

    #[pymodule_export]
    use crate::host::{Call, Exchange};
    #[pymodule_export]
    use crate::server::Server;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
