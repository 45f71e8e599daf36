//! What Python keeps for each of the core's threads.

use pyo3::ffi::{PyGILState_Ensure, PyGILState_Release, PyGILState_STATE};
use pyo3::prelude::*;

/// Makes the calling thread one of Python's for good.
///
/// Python frees what it keeps for a foreign thread each time that the thread leaves it, and maps memory anew when it
/// comes back: that was 6 % of the processor time of small predictions.
pub fn join_python() {
    Python::try_attach(|_| {
        // SAFETY: the thread is attached. One `Ensure` more than `Release` keeps its state, until `leave_python`.
        unsafe { PyGILState_Ensure() };
    });
}

/// Has Python forget the calling thread, which ends.
pub fn leave_python() {
    Python::try_attach(|_| {
        // SAFETY: the thread is attached, and ends the `Ensure` of `join_python`, which came before it.
        unsafe { PyGILState_Release(PyGILState_STATE::PyGILState_LOCKED) };
    });
}
