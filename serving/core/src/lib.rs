//! The native core of modelyard's server: it owns bytes, queues and the clock; Python owns models and meaning.

pub mod forms;

use pyo3::prelude::*;

#[pymodule]
mod modelyard_core {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
