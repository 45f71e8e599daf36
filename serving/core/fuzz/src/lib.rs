//! What the fuzz targets of the readers share.

#[path = "../../src/forms/mod.rs"]
pub mod forms;

use forms::{DType, InputSpec, Signature, Tensor};

/// Signatures with inputs of many kinds, of one, and of a rank that is free.
pub fn signatures() -> [Signature; 4] {
    let spec = |name: &str, dtype, shape: &[i64]| InputSpec { name: name.into(), dtype, shape: Some(shape.into()) };
    let signature = |inputs| Signature { name: "serving_default".into(), inputs };
    [
        signature(vec![spec("x", DType::F32, &[-1, 2])]),
        signature(vec![InputSpec { name: "x".into(), dtype: DType::F64, shape: None }]),
        signature(vec![spec("x", DType::U8, &[-1]), spec("y", DType::I64, &[-1, -1])]),
        signature(vec![spec("x", DType::Bool, &[-1]), spec("y", DType::I16, &[-1]), spec("z", DType::F16, &[-1])]),
    ]
}

/// What holds for every request that was read.
///
/// # Panics
/// It does not.
pub fn check(signature: &Signature, tensors: &[Tensor]) {
    assert_eq!(signature.inputs.len(), tensors.len());
    for (spec, tensor) in signature.inputs.iter().zip(tensors) {
        let count: usize = tensor.shape.iter().product();
        assert!(count > 0);
        assert_eq!(count * spec.dtype.size(), tensor.data.len());
    }
}
