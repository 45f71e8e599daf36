//! Batch queues and admission.

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub model: String,
    pub version: Option<i64>,
    pub label: Option<String>,
    pub signature: String,
    pub outputs: Vec<String>,
}

/// What can be answered here.
#[derive(Default)]
pub struct Plans {}
