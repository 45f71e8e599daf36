//! Inference by the Open Inference Protocol over REST: JSON, alone or followed by binary tensors.

use std::ops::Range;

use bytes::Bytes;

use super::numbers::{Rule, read_array};
use super::scan::Scan;
use super::tensor::{DType, Inputs, List, OutputView, Part, Shape, Signature, Tensor, push};
use super::texts::{all_finite, put_string, put_values};

/// An output that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requested<'a> {
    pub name: &'a str,
    /// Whether it goes into the binary part.
    pub binary: bool,
}

/// A request as far as it can be read without its signature.
#[derive(Clone, Debug)]
pub struct Head<'a> {
    /// Echoed.
    pub id: &'a str,
    /// The parameter of that name, which is echoed; `None` where there is none, and the default is meant.
    pub signature: Option<&'a str>,
    /// Empty for all.
    pub outputs: List<Requested<'a>>,
    /// Whether outputs go into the binary part where none is asked for by name.
    pub binary: bool,
    inputs: List<Input<'a>>,
}

#[derive(Clone, Debug)]
struct Input<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: Shape,
    values: Values<'a>,
}

#[derive(Clone, Debug)]
enum Values<'a> {
    Text(&'a [u8]),
    Binary(Bytes),
}

/// Reads all of a request but the numbers of its tensors.
///
/// # Arguments
/// * `json_length`: the header `Inference-Header-Content-Length`.
/// * `max_depth`: levels of nesting that are accepted.
pub fn head<'a>(body: &'a Bytes, json_length: Option<&[u8]>, max_depth: usize) -> Option<Head<'a>> {
    let length = match json_length {
        None => body.len(),
        Some(text) => read_length(text)?,
    };
    let (text, tail) = body.split_at_checked(length)?;
    let mut rest = body.slice_ref(tail);
    let (mut id, mut parameters, mut inputs, mut outputs) = (None, None, None, None);
    let mut scan = Scan::new(text);
    scan.object(|scan, key| match key {
        "id" => id.replace(scan.string()?).is_none().then_some(()),
        "parameters" => parameters.replace(read_parameters(scan)?).is_none().then_some(()),
        "inputs" => inputs.replace(read_inputs(scan, &mut rest, max_depth)?).is_none().then_some(()),
        "outputs" => outputs.replace(read_outputs(scan)?).is_none().then_some(()),
        _ => None,
    })?;
    scan.end()?;
    let (signature, binary) = parameters.unwrap_or_default();
    let binary = binary.unwrap_or(false);
    let outputs = outputs.unwrap_or_default();
    let outputs = outputs.into_iter().map(|(name, own)| Requested { name, binary: own.unwrap_or(binary) }).collect();
    // Bytes that no input takes.
    rest.is_empty().then_some(())?;
    Some(Head { id: id.unwrap_or(""), signature, outputs, binary, inputs: inputs? })
}

/// The length of the JSON part; 0 is for a request of another form.
fn read_length(text: &[u8]) -> Option<usize> {
    let digits = text.len() <= 15 && text.iter().all(u8::is_ascii_digit);
    let length = digits.then(|| std::str::from_utf8(text).ok()?.parse().ok())??;
    (length > 0).then_some(length)
}

/// The request's parameters that are usual: the signature, and whether outputs are binary.
fn read_parameters<'a>(scan: &mut Scan<'a>) -> Option<(Option<&'a str>, Option<bool>)> {
    let (mut signature, mut binary) = (None, None);
    scan.object(|scan, key| match key {
        "signature_name" => signature.replace(scan.string()?).is_none().then_some(()),
        "binary_data_output" => binary.replace(scan.boolean()?).is_none().then_some(()),
        _ => None,
    })?;
    Some((signature, binary))
}

fn read_inputs<'a>(scan: &mut Scan<'a>, rest: &mut Bytes, max_depth: usize) -> Option<List<Input<'a>>> {
    let mut inputs = List::new();
    scan.list(|scan| push(&mut inputs, read_input(scan, rest, max_depth)?))?;
    Some(inputs)
}

fn read_input<'a>(scan: &mut Scan<'a>, rest: &mut Bytes, max_depth: usize) -> Option<Input<'a>> {
    let (mut name, mut datatype, mut shape, mut data, mut parameters) = (None, None, None, None, None);
    scan.object(|scan, key| match key {
        "name" => name.replace(scan.string()?).is_none().then_some(()),
        "datatype" => datatype.replace(scan.string()?).is_none().then_some(()),
        "shape" => shape.replace(read_shape(scan)?).is_none().then_some(()),
        "data" => data.replace(scan.tensor()?).is_none().then_some(()),
        "parameters" => parameters.replace(read_size(scan)?).is_none().then_some(()),
        _ => None,
    })?;
    let values = match (data, parameters.flatten()) {
        (Some(text), None) => Values::Text(text),
        (None, Some(size)) if size <= rest.len() => Values::Binary(rest.split_to(size)),
        _ => return None,
    };
    // The request, its inputs, this one and its parameters or shape are levels too.
    (max_depth >= 4).then_some(Input { name: name?, datatype: datatype?, shape: shape?, values })
}

/// An input's parameters, of which only the size of its binary part is usual.
fn read_size(scan: &mut Scan<'_>) -> Option<Option<usize>> {
    let mut size = None;
    scan.object(|scan, key| match key {
        "binary_data_size" => size.replace(scan.size()?).is_none().then_some(()),
        _ => None,
    })?;
    Some(size)
}

fn read_shape(scan: &mut Scan<'_>) -> Option<Shape> {
    let mut shape = Shape::new();
    scan.list(|scan| {
        shape.push(scan.size()?);
        Some(())
    })?;
    Some(shape)
}

/// An output's name, and whether it is binary where it says so itself.
type Asked<'a> = (&'a str, Option<bool>);

fn read_outputs<'a>(scan: &mut Scan<'a>) -> Option<List<Asked<'a>>> {
    let mut outputs = List::new();
    scan.list(|scan| {
        let (mut name, mut parameters) = (None, None);
        scan.object(|scan, key| match key {
            "name" => name.replace(scan.string()?).is_none().then_some(()),
            "parameters" => parameters.replace(read_flag(scan)?).is_none().then_some(()),
            _ => None,
        })?;
        push(&mut outputs, (name.filter(|name: &&str| !name.is_empty())?, parameters.flatten()))
    })?;
    Some(outputs)
}

/// An output's parameters, of which only whether it is binary is usual.
fn read_flag(scan: &mut Scan<'_>) -> Option<Option<bool>> {
    let mut binary = None;
    scan.object(|scan, key| match key {
        "binary_data" => binary.replace(scan.boolean()?).is_none().then_some(()),
        _ => None,
    })?;
    Some(binary)
}

impl Head<'_> {
    /// The tensors, in the signature's order; binary ones are slices of the body.
    pub fn read(&self, signature: &Signature, max_depth: usize) -> Option<Vec<Tensor>> {
        let mut inputs = Inputs::new(signature);
        for input in &self.inputs {
            let index = inputs.find(input.name)?;
            let dtype = signature.inputs[index].dtype;
            if input.datatype != dtype.datatype() {
                return None;
            }
            let data = match &input.values {
                Values::Binary(data) => data.clone(),
                Values::Text(text) => {
                    let mut data = Vec::with_capacity(text.len() / 8 * dtype.size());
                    let shape = read_array(text, dtype, rule(dtype)?, &mut data)?;
                    // Nested as the shape says, or one flat list.
                    if shape.len() > 1 && shape != input.shape || shape.len() + 3 > max_depth {
                        return None;
                    }
                    data.into()
                }
            };
            inputs.put(index, input.shape.clone(), data)?;
        }
        inputs.finish()
    }
}

/// Which values a dtype takes; the half ones are never sent as JSON.
fn rule(dtype: DType) -> Option<Rule> {
    Some(match dtype {
        DType::F32 | DType::F64 => Rule::Float,
        DType::Bool => Rule::Bool,
        DType::I8 => Rule::Whole(i8::MIN.into(), i8::MAX.into()),
        DType::I16 => Rule::Whole(i16::MIN.into(), i16::MAX.into()),
        DType::I32 => Rule::Whole(i32::MIN.into(), i32::MAX.into()),
        DType::I64 => Rule::Whole(i64::MIN.into(), i64::MAX.into()),
        DType::U8 => Rule::Whole(0, u8::MAX.into()),
        DType::U16 => Rule::Whole(0, u16::MAX.into()),
        DType::U32 => Rule::Whole(0, u32::MAX.into()),
        DType::U64 => Rule::Whole(0, u64::MAX.into()),
        DType::F16 | DType::BF16 | DType::String => return None,
    })
}

/// What an answer repeats of its request, and who computed it.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The model, as the URL names it.
    pub model: &'a str,
    pub version: i64,
    pub id: &'a str,
    /// The parameter `signature_name`, where it was sent.
    pub signature: Option<&'a str>,
}

/// How a body was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    Json,
    /// So many bytes of JSON and then tensors: the header `Inference-Header-Content-Length` says how many.
    Binary(usize),
}

/// Writes an answer, in the order of the outputs.
///
/// # Arguments
/// * `outputs`: each with whether it goes into the binary part.
/// * `rows`: those of the batch that are the request's; all for `None`.
/// * `strict`: NaN and infinities are refused in JSON.
///
/// # Returns
/// `None`, and nothing is written, where the outputs do not have these rows, or JSON cannot carry one.
pub fn write(
    out: &mut Vec<u8>,
    answer: &Answer<'_>,
    outputs: &[(OutputView<'_>, bool)],
    rows: Option<&Range<usize>>,
    strict: bool,
) -> Option<Body> {
    let parts = outputs
        .iter()
        .map(|(output, binary)| {
            let part = output.part(rows)?;
            (*binary || part.is_text() && (!strict || all_finite(part.dtype, part.data))).then_some((part, *binary))
        })
        .collect::<Option<List<_>>>()?;
    let begin = out.len();
    put_answer(out, answer);
    for (index, (part, binary)) in parts.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        put_output(out, part, *binary);
    }
    out.extend_from_slice(b"]}");
    if !parts.iter().any(|(_, binary)| *binary) {
        return Some(Body::Json);
    }
    let length = out.len() - begin;
    for (part, _) in parts.iter().filter(|(_, binary)| *binary) {
        out.extend_from_slice(part.data);
    }
    Some(Body::Binary(length))
}

fn put_answer(out: &mut Vec<u8>, answer: &Answer<'_>) {
    out.extend_from_slice(b"{\"model_name\":");
    put_string(out, answer.model);
    out.extend_from_slice(b",\"model_version\":\"");
    out.extend_from_slice(itoa::Buffer::new().format(answer.version).as_bytes());
    out.push(b'"');
    if !answer.id.is_empty() {
        out.extend_from_slice(b",\"id\":");
        put_string(out, answer.id);
    }
    if let Some(signature) = answer.signature {
        out.extend_from_slice(b",\"parameters\":{\"signature_name\": ");
        put_string(out, signature);
        out.push(b'}');
    }
    out.extend_from_slice(b",\"outputs\":[");
}

fn put_output(out: &mut Vec<u8>, part: &Part<'_>, binary: bool) {
    out.extend_from_slice(b"{\"name\":");
    put_string(out, part.name);
    out.extend_from_slice(b",\"datatype\":\"");
    out.extend_from_slice(part.dtype.datatype().as_bytes());
    out.extend_from_slice(b"\",\"shape\":[");
    for (index, &size) in part.shape.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
    }
    if binary {
        out.extend_from_slice(b"],\"parameters\":{\"binary_data_size\":");
        out.extend_from_slice(itoa::Buffer::new().format(part.data.len()).as_bytes());
        out.extend_from_slice(b"}}");
    } else {
        out.extend_from_slice(b"],\"data\":[");
        put_values(out, part, 0..part.shape.iter().product(), ",");
        out.extend_from_slice(b"]}");
    }
}
