//! Inference by the Open Inference Protocol over gRPC: `inference.ModelInferRequest` and `ModelInferResponse`, alone and
//! in the stream.

use std::ops::Range;

use bytes::Bytes;

use super::proto::{
    Fields, Value, bytes_size, is_signaling, put_bytes, put_text, put_varint, text, varint_size, varints,
};
use super::tensor::{DType, Inputs, List, OutputView, Part, Shape, Signature, Tensor, push};
use super::v2_rest::Answer;

/// A request as far as it can be read without its signature.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    pub model: &'a str,
    /// `None` for the newest.
    pub version: Option<i64>,
    /// Echoed.
    pub id: &'a str,
    /// The parameter of that name, which is echoed; `None` where there is none, and the default is meant.
    pub signature: Option<&'a str>,
    /// Empty for all.
    pub outputs: List<&'a str>,
    body: &'a Bytes,
    inputs: List<Input<'a>>,
}

#[derive(Clone, Debug, Default)]
struct Input<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: Shape,
    /// The typed fields.
    contents: Option<&'a [u8]>,
    raw: Option<&'a [u8]>,
}

/// The value of a parameter that may be usual.
enum Parameter<'a> {
    Flag,
    Text(&'a str),
}

/// Reads all of a request but the values of its tensors.
pub fn head(body: &Bytes) -> Option<Head<'_>> {
    let mut head =
        Head { model: "", version: None, id: "", signature: None, outputs: List::new(), body, inputs: List::new() };
    let mut raw = List::new();
    let mut fields = Fields(body);
    while !fields.is_empty() {
        match fields.next()? {
            (1, Value::Bytes(name)) => head.model = text(name)?,
            (2, Value::Bytes(version)) => head.version = read_version(version)?,
            (3, Value::Bytes(id)) => head.id = text(id)?,
            (4, Value::Bytes(entry)) => match read_parameter(entry)? {
                ("signature_name", Parameter::Text(name)) if head.signature.is_none() => head.signature = Some(name),
                // For streams, whatever it says.
                ("triton_enable_empty_final_response", Parameter::Flag) => {}
                _ => return None,
            },
            (5, Value::Bytes(input)) => push(&mut head.inputs, read_input(input)?)?,
            (6, Value::Bytes(output)) => push(&mut head.outputs, read_output(output)?)?,
            (7, Value::Bytes(contents)) => push(&mut raw, contents)?,
            _ => return None,
        }
    }
    if !raw.is_empty() {
        if raw.len() != head.inputs.len() || head.inputs.iter().any(|input| input.contents.is_some()) {
            return None;
        }
        for (input, contents) in head.inputs.iter_mut().zip(raw) {
            input.raw = Some(contents);
        }
    }
    Some(head)
}

/// A version as text; empty for the newest.
fn read_version(version: &[u8]) -> Option<Option<i64>> {
    match version {
        [] => Some(None),
        digits if digits.len() <= 18 && digits.iter().all(u8::is_ascii_digit) => {
            Some(Some(std::str::from_utf8(digits).ok()?.parse().ok()?))
        }
        _ => None,
    }
}

fn read_parameter(entry: &[u8]) -> Option<(&str, Parameter<'_>)> {
    let (mut key, mut parameter) = ("", None);
    let mut fields = Fields(entry);
    while !fields.is_empty() {
        match fields.next()? {
            (1, Value::Bytes(name)) => key = text(name)?,
            (2, Value::Bytes(value)) if parameter.is_none() => parameter = Some(value),
            _ => return None,
        }
    }
    let mut fields = Fields(parameter?);
    let value = match fields.next()? {
        (1, Value::Varint(_)) => Parameter::Flag,
        (3, Value::Bytes(value)) => Parameter::Text(text(value)?),
        _ => return None,
    };
    fields.is_empty().then_some((key, value))
}

fn read_input(message: &[u8]) -> Option<Input<'_>> {
    let mut input = Input::default();
    let mut fields = Fields(message);
    while !fields.is_empty() {
        match fields.next()? {
            (1, Value::Bytes(name)) => input.name = text(name)?,
            (2, Value::Bytes(datatype)) => input.datatype = text(datatype)?,
            (3, Value::Bytes(packed)) => {
                let mut sizes = Fields(packed);
                while !sizes.is_empty() {
                    push_size(&mut input.shape, sizes.varint()?)?;
                }
            }
            (3, Value::Varint(size)) => push_size(&mut input.shape, size)?,
            (5, Value::Bytes(contents)) if input.contents.is_none() => input.contents = Some(contents),
            _ => return None,
        }
    }
    Some(input)
}

fn push_size(shape: &mut Shape, size: u64) -> Option<()> {
    shape.push(usize::try_from(i64::try_from(size).ok()?).ok()?);
    Some(())
}

/// An output's name; over gRPC all are raw, whatever the parameter for REST says.
fn read_output(message: &[u8]) -> Option<&str> {
    let mut name = "";
    let mut fields = Fields(message);
    while !fields.is_empty() {
        match fields.next()? {
            (1, Value::Bytes(value)) => name = text(value)?,
            (2, Value::Bytes(entry)) => match read_parameter(entry)? {
                ("binary_data", Parameter::Flag) => {}
                _ => return None,
            },
            _ => return None,
        }
    }
    Some(name)
}

impl Head<'_> {
    /// The tensors, in the signature's order; raw ones are slices of the body.
    pub fn read(&self, signature: &Signature) -> Option<Vec<Tensor>> {
        let mut inputs = Inputs::new(signature);
        for input in &self.inputs {
            let index = inputs.find(input.name)?;
            let dtype = signature.inputs[index].dtype;
            if input.datatype != dtype.datatype() {
                return None;
            }
            let data = match (input.raw, input.contents) {
                (Some(raw), None) => self.body.slice_ref(raw),
                (None, Some(contents)) => read_contents(contents, dtype, self.body)?,
                _ => return None,
            };
            inputs.put(index, input.shape.clone(), data)?;
        }
        inputs.finish()
    }
}

/// The values of a message with the one packed field of a dtype.
fn read_contents(contents: &[u8], dtype: DType, body: &Bytes) -> Option<Bytes> {
    let mut fields = Fields(contents);
    let (field, Value::Bytes(packed)) = fields.next()? else { return None };
    if !fields.is_empty() {
        return None;
    }
    match (field, dtype) {
        (6, DType::F32) if !packed.chunks_exact(4).any(is_signaling) => Some(body.slice_ref(packed)),
        (7, DType::F64) => Some(body.slice_ref(packed)),
        (1, DType::Bool) | (3, DType::I64) | (5, DType::U64) => varints(packed, dtype),
        (2, DType::I8 | DType::I16 | DType::I32) => narrowed(&varints(packed, DType::I32)?, dtype.size(), 0xff),
        (4, DType::U8 | DType::U16 | DType::U32) => narrowed(&varints(packed, DType::U32)?, dtype.size(), 0),
        _ => None,
    }
}

/// Integers of four bytes as such of fewer; `None` where one does not fit.
fn narrowed(data: &[u8], size: usize, negative: u8) -> Option<Bytes> {
    let mut result = Vec::with_capacity(data.len() / 4 * size);
    for element in data.chunks_exact(4) {
        let (low, high) = element.split_at(size);
        let upper = if low[size - 1] >= 0x80 { negative } else { 0 };
        // Unsigned ones have nothing above, and signed ones their sign.
        if high.iter().any(|&byte| byte != upper) {
            return None;
        }
        result.extend_from_slice(low);
    }
    Some(result.into())
}

/// Writes an answer, in the order of the outputs; all are raw.
///
/// # Arguments
/// * `rows`: those of the batch that are the request's; all for `None`.
///
/// # Returns
/// Whether the outputs have these rows; nothing is written where not.
pub fn write(out: &mut Vec<u8>, answer: &Answer<'_>, outputs: &[OutputView<'_>], rows: Option<&Range<usize>>) -> bool {
    put(out, answer, outputs, rows).is_some()
}

fn put(out: &mut Vec<u8>, answer: &Answer<'_>, outputs: &[OutputView<'_>], rows: Option<&Range<usize>>) -> Option<()> {
    let parts = outputs.iter().map(|output| output.part(rows)).collect::<Option<List<_>>>()?;
    put_text(out, 1 << 3 | 2, answer.model);
    put_text(out, 2 << 3 | 2, itoa::Buffer::new().format(answer.version));
    put_text(out, 3 << 3 | 2, answer.id);
    if let Some(signature) = answer.signature {
        let mut value = Vec::with_capacity(bytes_size(signature.len()));
        put_bytes(&mut value, 3 << 3 | 2, signature.as_bytes());
        put_parameter(out, "signature_name", &value);
    }
    for part in &parts {
        put_tensor(out, part);
    }
    for part in &parts {
        put_bytes(out, 6 << 3 | 2, part.data);
    }
    Some(())
}

fn put_parameter(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    out.push(4 << 3 | 2);
    put_varint(out, (bytes_size(key.len()) + bytes_size(value.len())) as u64);
    put_bytes(out, 1 << 3 | 2, key.as_bytes());
    put_bytes(out, 2 << 3 | 2, value);
}

fn put_tensor(out: &mut Vec<u8>, part: &Part<'_>) {
    let datatype = part.dtype.datatype();
    let sizes = part.shape.iter().map(|&size| varint_size(size as u64)).sum::<usize>();
    let text_size = |text: &str| if text.is_empty() { 0 } else { bytes_size(text.len()) };
    let shape = if sizes == 0 { 0 } else { bytes_size(sizes) };
    out.push(5 << 3 | 2);
    put_varint(out, (text_size(part.name) + text_size(datatype) + shape) as u64);
    put_text(out, 1 << 3 | 2, part.name);
    put_text(out, 2 << 3 | 2, datatype);
    if sizes != 0 {
        out.push(3 << 3 | 2);
        put_varint(out, sizes as u64);
        for &size in &part.shape {
            put_varint(out, size as u64);
        }
    }
}
