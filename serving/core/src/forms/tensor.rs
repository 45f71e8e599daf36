//! Tensors as the forms see them: a dtype, a shape and little-endian bytes in C order.

use std::ops::Range;

use bytes::Bytes;
use smallvec::{SmallVec, smallvec};

/// More dimensions than any model's; numpy has 64 at most.
pub(crate) const MAX_RANK: usize = 32;
/// More inputs, or outputs, than any model's: a request may name many in few bytes.
const MAX_TENSORS: usize = 256;

/// What a request says of each of its inputs or outputs.
pub(crate) type List<T> = SmallVec<[T; 4]>;

/// Adds to a list; `None` where it is full.
pub(crate) fn push<T>(list: &mut List<T>, item: T) -> Option<()> {
    (list.len() < MAX_TENSORS).then(|| list.push(item))
}

/// Sizes of a tensor; few have more than six.
pub type Shape = SmallVec<[usize; 6]>;

/// Element types. Strings are only ever outputs: requests with them are never of the usual form.
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
    /// Each is its length, four bytes, and its bytes.
    String,
}

impl DType {
    /// Bytes of an element; of a string, the fewest.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 => 1,
            DType::I16 | DType::U16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 | DType::String => 4,
            DType::I64 | DType::U64 | DType::F64 => 8,
        }
    }

    /// The dtype of an input by TensorFlow's name for it, such as `float32`.
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

    /// The dtype of an output by its name.
    pub fn of_output(name: &str) -> Option<DType> {
        if name == "string" { Some(DType::String) } else { DType::by_name(name) }
    }

    /// Its number in `tensorflow.DataType`.
    pub(crate) const fn number(self) -> u8 {
        match self {
            DType::F32 => 1,
            DType::F64 => 2,
            DType::I32 => 3,
            DType::U8 => 4,
            DType::I16 => 5,
            DType::I8 => 6,
            DType::String => 7,
            DType::I64 => 9,
            DType::Bool => 10,
            DType::BF16 => 14,
            DType::U16 => 17,
            DType::F16 => 19,
            DType::U32 => 22,
            DType::U64 => 23,
        }
    }

    /// The Open Inference Protocol's name of it; BF16 is Triton's addition.
    pub(crate) const fn datatype(self) -> &'static str {
        match self {
            DType::Bool => "BOOL",
            DType::I8 => "INT8",
            DType::I16 => "INT16",
            DType::I32 => "INT32",
            DType::I64 => "INT64",
            DType::U8 => "UINT8",
            DType::U16 => "UINT16",
            DType::U32 => "UINT32",
            DType::U64 => "UINT64",
            DType::F16 => "FP16",
            DType::BF16 => "BF16",
            DType::F32 => "FP32",
            DType::F64 => "FP64",
            DType::String => "BYTES",
        }
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

impl InputSpec {
    /// A request's tensor where it is one of this input with at least one element: zero rows are never usual.
    pub(crate) fn tensor(&self, shape: Shape, data: Bytes) -> Option<Tensor> {
        let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
        let fits = count > 0
            && shape.len() <= MAX_RANK
            && count.checked_mul(self.dtype.size())? == data.len()
            && self.fits(&shape);
        // Runtimes take no other bytes than these for booleans.
        let sound = self.dtype != DType::Bool || data.iter().all(|&byte| byte < 2);
        (fits && sound).then_some(Tensor { shape, data })
    }

    fn fits(&self, shape: &[usize]) -> bool {
        let Some(wanted) = &self.shape else { return true };
        wanted.len() == shape.len()
            && wanted.iter().zip(shape).all(|(&want, &have)| want == -1 || usize::try_from(want) == Ok(have))
    }
}

/// What requests to a signature hold. Signatures with strings, decoders or defaults have none: they are never usual.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Its resolved name.
    pub name: String,
    pub inputs: Vec<InputSpec>,
}

/// The inputs of a request, as they come; the result is in the signature's order.
pub(crate) struct Inputs<'a> {
    signature: &'a Signature,
    tensors: SmallVec<[Option<Tensor>; 4]>,
}

impl<'a> Inputs<'a> {
    pub(crate) fn new(signature: &'a Signature) -> Self {
        Self { signature, tensors: smallvec![None; signature.inputs.len()] }
    }

    /// Where the signature has an input; clients send them in its order or another.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.signature.inputs.iter().position(|spec| spec.name == name)
    }

    /// Takes an input's tensor; `None` where it does not fit, or came before.
    pub(crate) fn put(&mut self, index: usize, shape: Shape, data: Bytes) -> Option<()> {
        let tensor = self.signature.inputs[index].tensor(shape, data)?;
        self.tensors[index].replace(tensor).is_none().then_some(())
    }

    /// All of them; `None` where one is missing.
    pub(crate) fn finish(self) -> Option<Vec<Tensor>> {
        self.tensors.into_iter().collect()
    }
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
    /// Where each string ends in the data; empty for numbers.
    pub ends: &'a [usize],
}

impl<'a> OutputView<'a> {
    /// One request's part of the batch; all of it for `None`.
    ///
    /// Nothing where there are no such rows, or the data are not as many as the shape says.
    pub(crate) fn part(&self, rows: Option<&Range<usize>>) -> Option<Part<'a>> {
        let count = self.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
        let fits = match self.dtype {
            DType::String => self.ends.len() == count && self.ends.last().copied().unwrap_or(0) == self.data.len(),
            dtype => count.checked_mul(dtype.size())? == self.data.len(),
        };
        if !fits {
            return None;
        }
        let (name, dtype, data, ends) = (self.name, self.dtype, self.data, self.ends);
        let mut part = Part { name, dtype, shape: self.shape.into(), data, ends };
        if let Some(rows) = rows {
            let size = part.shape.first_mut()?;
            if rows.start > rows.end || rows.end > *size {
                return None;
            }
            let step = count.checked_div(*size).unwrap_or(0);
            *size = rows.len();
            let elements = rows.start * step..rows.end * step;
            part.data = part.bytes(elements.clone());
            if self.dtype == DType::String {
                part.ends = &self.ends[elements];
            }
        }
        Some(part)
    }
}

/// One output of one request.
pub(crate) struct Part<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) data: &'a [u8],
    /// Where each string ends in the data of the batch.
    ends: &'a [usize],
}

impl<'a> Part<'a> {
    /// The bytes of some elements.
    pub(crate) fn bytes(&self, elements: Range<usize>) -> &'a [u8] {
        if self.dtype != DType::String {
            let size = self.dtype.size();
            return &self.data[elements.start * size..elements.end * size];
        }
        let begin = self.ends.last().map_or(0, |end| end - self.data.len());
        let end_of = |count: usize| if count == 0 { 0 } else { self.ends[count - 1] - begin };
        &self.data[end_of(elements.start)..end_of(elements.end)]
    }

    /// Whether JSON can carry it: text is UTF-8.
    pub(crate) fn is_text(&self) -> bool {
        self.dtype != DType::String || Strings(self.data).all(|text| std::str::from_utf8(text).is_ok())
    }
}

/// Strings that stand one behind another, each its length and its bytes; it ends where that is not so.
pub(crate) struct Strings<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(text)
    }
}

/// Where each of the strings ends; `None` where the data are no strings, or others follow.
pub fn ends_of_strings(data: &[u8]) -> Option<Vec<usize>> {
    let mut strings = Strings(data);
    let mut ends = Vec::new();
    while strings.next().is_some() {
        ends.push(data.len() - strings.0.len());
    }
    strings.0.is_empty().then_some(ends)
}

/// What an answer says of the request: the model, the version that computed it and the resolved signature.
#[derive(Clone, Copy, Debug)]
pub struct AnswerSpec<'a> {
    pub model: &'a str,
    pub version: i64,
    pub signature: &'a str,
}
