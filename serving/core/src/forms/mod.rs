//! The usual forms of Predict: bodies to tensors and tensors to answers.
//!
//! Only what clients really send is read here. A reader returns `None` for anything else, right or wrong; the request
//! then goes whole to the Python handlers, so that one place words every error. Readers never panic, take memory only
//! in proportion to the body, and know nothing of transports, queues or Python.

mod floats;
pub mod json;
mod lists;
mod numbers;
pub mod predict_grpc;
mod proto;
#[cfg(feature = "python")]
pub(crate) mod python;
mod scan;
mod tensor;
mod texts;
pub mod v2_grpc;
pub mod v2_rest;

#[cfg(feature = "python")]
pub(crate) use proto::{put_bytes, put_varint};
pub use tensor::{AnswerSpec, DType, InputSpec, OutputView, Shape, Signature, Tensor, ends_of_strings};
pub use texts::json_string;
