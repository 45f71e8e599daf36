//! Predict over gRPC: `tensorflow.serving.PredictRequest` and `PredictResponse`.

use std::ops::Range;

use bytes::Bytes;

use super::proto::{
    Fields, Value, bytes_size, is_signaling, put_bytes, put_text, put_varint, put_varints, text, varint_size, varints,
    varints_size,
};
use super::tensor::{
    AnswerSpec, DType, InputSpec, Inputs, List, OutputView, Part, Shape, Signature, Strings, Tensor, push,
};

/// A request as far as it can be read without its signature.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    pub model: &'a str,
    pub version: Option<i64>,
    pub label: Option<&'a str>,
    /// As sent; empty for the default.
    pub signature: &'a str,
    /// Empty for all.
    pub outputs: List<&'a str>,
    body: &'a Bytes,
    inputs: List<(&'a str, &'a [u8])>,
}

/// Reads all of a request but its tensors.
pub fn head(body: &Bytes) -> Option<Head<'_>> {
    let mut head =
        Head { model: "", version: None, label: None, signature: "", outputs: List::new(), body, inputs: List::new() };
    let mut seen = false;
    let mut fields = Fields(body);
    while !fields.is_empty() {
        match fields.next()? {
            (1, Value::Bytes(spec)) if !seen => {
                head.read_spec(spec)?;
                seen = true;
            }
            (2, Value::Bytes(entry)) => push(&mut head.inputs, read_entry(entry)?)?,
            (3, Value::Bytes(name)) => push(&mut head.outputs, text(name)?)?,
            _ => return None,
        }
    }
    seen.then_some(head)
}

impl<'a> Head<'a> {
    /// The tensors, in the signature's order; those in `tensor_content` are slices of the body.
    pub fn read(&self, signature: &Signature) -> Option<Vec<Tensor>> {
        let mut inputs = Inputs::new(signature);
        for (name, tensor) in &self.inputs {
            let index = inputs.find(name)?;
            let (shape, data) = read_tensor(tensor, &signature.inputs[index], self.body)?;
            inputs.put(index, shape, data)?;
        }
        inputs.finish()
    }

    fn read_spec(&mut self, spec: &'a [u8]) -> Option<()> {
        let mut fields = Fields(spec);
        while !fields.is_empty() {
            match fields.next()? {
                (1, Value::Bytes(name)) => self.model = text(name)?,
                (2, Value::Bytes(version)) if self.version.is_none() && self.label.is_none() => {
                    self.version = Some(read_int64(version)?);
                }
                (3, Value::Bytes(signature)) => self.signature = text(signature)?,
                (4, Value::Bytes(label)) if self.version.is_none() => self.label = Some(text(label)?),
                _ => return None,
            }
        }
        Some(())
    }
}

/// A message with nothing but one number that is not negative.
fn read_int64(message: &[u8]) -> Option<i64> {
    let mut fields = Fields(message);
    if fields.is_empty() {
        return Some(0);
    }
    match fields.next()? {
        (1, Value::Varint(value)) if fields.is_empty() => i64::try_from(value).ok(),
        _ => None,
    }
}

fn read_entry(entry: &[u8]) -> Option<(&str, &[u8])> {
    let (mut name, mut tensor) = ("", None);
    let mut fields = Fields(entry);
    while !fields.is_empty() {
        match fields.next()? {
            (1, Value::Bytes(key)) => name = text(key)?,
            (2, Value::Bytes(value)) if tensor.is_none() => tensor = Some(value),
            _ => return None,
        }
    }
    Some((name, tensor?))
}

/// What a tensor's values stand in.
enum Values<'a> {
    Content(&'a [u8]),
    Typed(u32, &'a [u8]),
}

fn read_tensor(tensor: &[u8], spec: &InputSpec, body: &Bytes) -> Option<(Shape, Bytes)> {
    let mut shape = Shape::new();
    let mut values = None;
    let mut number = 0;
    let mut fields = Fields(tensor);
    while !fields.is_empty() {
        match fields.next()? {
            (1, Value::Varint(value)) => number = value,
            (2, Value::Bytes(sizes)) => read_shape(sizes, &mut shape)?,
            (4, Value::Bytes(content)) if values.is_none() => values = Some(Values::Content(content)),
            (field @ 5..=17, Value::Bytes(packed)) if values.is_none() => values = Some(Values::Typed(field, packed)),
            _ => return None,
        }
    }
    if number != u64::from(spec.dtype.number()) {
        return None;
    }
    let data = match values? {
        Values::Content(content) => body.slice_ref(content),
        Values::Typed(field, packed) if field == typed_field(spec.dtype) => match spec.dtype {
            DType::F32 if packed.chunks_exact(4).any(is_signaling) => return None,
            DType::F32 | DType::F64 => body.slice_ref(packed),
            dtype => varints(packed, dtype)?,
        },
        Values::Typed(..) => return None,
    };
    Some((shape, data))
}

fn read_shape(message: &[u8], shape: &mut Shape) -> Option<()> {
    let mut fields = Fields(message);
    while !fields.is_empty() {
        let (2, Value::Bytes(dimension)) = fields.next()? else { return None };
        shape.push(usize::try_from(read_int64(dimension)?).ok()?);
    }
    Some(())
}

/// The number of the packed field of `TensorProto` that holds values of a dtype.
const fn typed_field(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 5,
        DType::F64 => 6,
        DType::String => 8,
        DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16 => 7,
        DType::I64 => 10,
        DType::Bool => 11,
        DType::F16 | DType::BF16 => 13,
        DType::U32 => 16,
        DType::U64 => 17,
    }
}

const CONTENT: u8 = 4 << 3 | 2;

/// Writes an answer, in the order of the outputs.
///
/// # Arguments
/// * `rows`: those of the batch that are the request's; all for `None`.
/// * `as_content`: numbers go to `tensor_content` instead of the typed fields.
///
/// # Returns
/// Whether the outputs have these rows; nothing is written where not.
pub fn write(
    out: &mut Vec<u8>,
    spec: &AnswerSpec<'_>,
    outputs: &[OutputView<'_>],
    rows: Option<&Range<usize>>,
    as_content: bool,
) -> bool {
    let begin = out.len();
    for output in outputs {
        let Some(part) = output.part(rows) else {
            out.truncate(begin);
            return false;
        };
        put_output(out, &part, as_content);
    }
    put_spec(out, spec);
    true
}

fn put_output(out: &mut Vec<u8>, part: &Part<'_>, as_content: bool) {
    let head = tensor_head(part);
    let tag = u64::from(typed_field(part.dtype)) << 3 | 2;
    let strings = part.dtype == DType::String;
    let plain = !strings && (as_content || matches!(part.dtype, DType::F32 | DType::F64));
    let values = match (part.data.len(), plain) {
        (0, _) => 0,
        (_, _) if strings => Strings(part.data).map(|value| bytes_size(value.len())).sum(),
        (size, true) => bytes_size(size),
        (_, false) => varint_size(tag) + varints_size(part.data, part.dtype),
    };
    let tensor = head.len() + values;
    out.push(1 << 3 | 2);
    put_varint(out, (bytes_size(part.name.len()) + bytes_size(tensor)) as u64);
    put_bytes(out, 1 << 3 | 2, part.name.as_bytes());
    out.push(2 << 3 | 2);
    put_varint(out, tensor as u64);
    out.extend_from_slice(&head);
    if values == 0 {
    } else if strings {
        Strings(part.data).for_each(|value| put_bytes(out, tag as u8, value));
    } else if plain {
        put_bytes(out, if as_content { CONTENT } else { tag as u8 }, part.data);
    } else {
        put_varints(out, tag, part.data, part.dtype);
    }
}

/// A tensor's dtype and shape; a scalar has none.
fn tensor_head(part: &Part<'_>) -> Vec<u8> {
    let mut head = Vec::with_capacity(32);
    head.extend([1 << 3, part.dtype.number()]);
    if !part.shape.is_empty() {
        let dimension = |size: usize| if size == 0 { 0 } else { 1 + varint_size(size as u64) };
        let total = part.shape.iter().map(|&size| bytes_size(dimension(size))).sum::<usize>();
        head.push(2 << 3 | 2);
        put_varint(&mut head, total as u64);
        for &size in &part.shape {
            head.extend([2 << 3 | 2, dimension(size) as u8]);
            if size != 0 {
                head.push(1 << 3);
                put_varint(&mut head, size as u64);
            }
        }
    }
    head
}

fn put_spec(out: &mut Vec<u8>, spec: &AnswerSpec<'_>) {
    let version = if spec.version == 0 { 0 } else { 1 + varint_size(spec.version as u64) };
    let text_size = |text: &str| if text.is_empty() { 0 } else { bytes_size(text.len()) };
    let size = text_size(spec.model) + bytes_size(version) + text_size(spec.signature);
    out.push(2 << 3 | 2);
    put_varint(out, size as u64);
    put_text(out, 1 << 3 | 2, spec.model);
    out.extend([2 << 3 | 2, version as u8]);
    if version != 0 {
        out.push(1 << 3);
        put_varint(out, spec.version as u64);
    }
    put_text(out, 3 << 3 | 2, spec.signature);
}
