//! Tensors as the forms see them: a dtype, a shape and little-endian bytes in C order.

use bytes::Bytes;
use smallvec::SmallVec;

/// Sizes of a tensor; few have more than six.
pub type Shape = SmallVec<[usize; 6]>;

/// Element types of a fixed size. Strings are never of the usual form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    BF16,
    F32,
    F64,
}

impl DType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// The dtype of TensorFlow's name for it, such as `float32`.
    pub fn by_name(name: &str) -> Option<DType> {
        Some(match name {
            "bool" => DType::Bool,
            "int8" => DType::I8,
            "int16" => DType::I16,
            "int32" => DType::I32,
            "int64" => DType::I64,
            "uint8" => DType::U8,
            "uint16" => DType::U16,
            "uint32" => DType::U32,
            "uint64" => DType::U64,
            "float16" => DType::F16,
            "bfloat16" => DType::BF16,
            "float32" => DType::F32,
            "float64" => DType::F64,
            _ => return None,
        })
    }
}

/// An input of a signature.
#[derive(Clone, Debug)]
pub struct InputSpec {
    pub name: String,
    pub dtype: DType,
    /// Sizes, -1 where any is taken; `None` where even the rank is free.
    pub shape: Option<Vec<i64>>,
}

/// What requests to a signature hold. Signatures with strings, decoders or defaults have none: they are never usual.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Its resolved name.
    pub name: String,
    pub inputs: Vec<InputSpec>,
}

/// One input of one request.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub shape: Shape,
    /// `shape` times the size of the dtype; a slice of the request's body where the form allows it.
    pub data: Bytes,
}

/// One output of a computed batch.
#[derive(Clone, Copy, Debug)]
pub struct OutputView<'a> {
    pub name: &'a str,
    pub dtype: DType,
    /// Of the whole batch.
    pub shape: &'a [usize],
    /// In C order.
    pub data: &'a [u8],
}
