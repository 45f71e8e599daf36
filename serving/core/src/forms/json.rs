//! Predict over TensorFlow Serving's REST API: JSON in row form (`instances`) and in column form (`inputs`).

use std::ops::Range;

use super::numbers::{Rule, read_array};
use super::scan::Scan;
use super::tensor::{DType, Inputs, OutputView, Part, Shape, Signature, Tensor};
use super::texts::{all_finite, put_array, put_row, put_string};

/// How a body, and so its answer, arranges tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `instances`, a list of rows.
    Row,
    /// `inputs`, whole tensors.
    Column,
}

/// What the server was started with.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// NaN and infinities are refused in answers.
    pub strict: bool,
    /// JSON may hold dtypes that upstream's lacks.
    pub extensions: bool,
    /// Levels of nesting that are accepted.
    pub max_depth: usize,
}

/// A request as far as it can be read without its signature.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// As sent; empty for the default.
    pub signature: &'a str,
    pub form: Form,
    value: &'a [u8],
}

/// Finds a body's signature and its tensors, which are not read yet.
pub fn head(body: &[u8]) -> Option<Head<'_>> {
    let (mut signature, mut found) = (None, None);
    let mut scan = Scan::new(body);
    scan.object(|scan, key| match key {
        "signature_name" => signature.replace(scan.string()?).is_none().then_some(()),
        "instances" => found.replace((Form::Row, value(scan)?)).is_none().then_some(()),
        "inputs" => found.replace((Form::Column, value(scan)?)).is_none().then_some(()),
        _ => None,
    })?;
    scan.end()?;
    let (form, value) = found?;
    Some(Head { signature: signature.unwrap_or(""), form, value })
}

/// Takes what stands under `instances` or `inputs`, and returns its text.
fn value<'a>(scan: &mut Scan<'a>) -> Option<&'a [u8]> {
    match (scan.peek()?, begins_with_object(*scan)) {
        (b'{', _) => scan.span(|scan| scan.object(|scan, _| scan.tensor().map(drop))),
        (_, true) => scan.span(|scan| scan.list(|scan| scan.object(|scan, _| scan.tensor().map(drop)))),
        _ => scan.tensor(),
    }
}

/// Whether a list comes whose first item is an object.
fn begins_with_object(mut scan: Scan<'_>) -> bool {
    scan.take(b'[').is_some() && matches!(scan.peek(), Some(b'{'))
}

impl Head<'_> {
    /// The tensors, in the signature's order.
    pub fn read(&self, signature: &Signature, options: &Options) -> Option<Vec<Tensor>> {
        let mut scan = Scan::new(self.value);
        let mut inputs = Inputs::new(signature);
        match (self.form, scan.peek()?) {
            (Form::Column, b'{') => scan.object(|scan, key| {
                let index = inputs.find(key)?;
                let (shape, data) = read(scan.tensor()?, signature.inputs[index].dtype, options, 2)?;
                inputs.put(index, shape, data.into())
            })?,
            (Form::Row, b'[') if begins_with_object(scan) => {
                for (index, (shape, data)) in
                    named_rows(&mut scan, signature, &inputs, options)?.into_iter().enumerate()
                {
                    inputs.put(index, shape, data.into())?;
                }
            }
            (Form::Row, b'[') | (Form::Column, _) if signature.inputs.len() == 1 => {
                let (shape, data) = read(self.value, signature.inputs[0].dtype, options, 1)?;
                inputs.put(0, shape, data.into())?;
            }
            _ => return None,
        }
        inputs.finish()
    }
}

/// Reads a tensor around which there are so many levels.
fn read(text: &[u8], dtype: DType, options: &Options, levels: usize) -> Option<(Shape, Vec<u8>)> {
    // Numbers of fewer characters make it grow.
    let mut data = Vec::with_capacity(text.len() / 8 * dtype.size());
    let shape = read_array(text, dtype, rule(dtype, options.extensions)?, &mut data)?;
    (shape.len() + levels <= options.max_depth).then_some((shape, data))
}

/// Reads rows that name their inputs, each of which must name all.
fn named_rows(
    scan: &mut Scan<'_>,
    signature: &Signature,
    inputs: &Inputs<'_>,
    options: &Options,
) -> Option<Vec<(Shape, Vec<u8>)>> {
    let mut columns: Vec<(Option<Shape>, Vec<u8>, usize)> = vec![Default::default(); signature.inputs.len()];
    let mut rows = 0;
    scan.list(|scan| {
        rows += 1;
        let mut named = 0;
        scan.object(|scan, key| {
            let index = inputs.find(key)?;
            let dtype = signature.inputs[index].dtype;
            let (known, data, last) = &mut columns[index];
            // Twice in one row.
            if std::mem::replace(last, rows) == rows {
                return None;
            }
            named += 1;
            let shape = read_array(scan.tensor()?, dtype, rule(dtype, options.extensions)?, data)?;
            (shape.len() + 3 <= options.max_depth && *known.get_or_insert_with(|| shape.clone()) == shape).then_some(())
        })?;
        (named == signature.inputs.len()).then_some(())
    })?;
    let column = |(shape, data, _): (Option<Shape>, Vec<u8>, usize)| {
        let mut sizes = shape?;
        sizes.insert(0, rows);
        Some((sizes, data))
    };
    columns.into_iter().map(column).collect()
}

/// Which values upstream takes for a dtype; narrow integers wrap.
fn rule(dtype: DType, extensions: bool) -> Option<Rule> {
    Some(match dtype {
        DType::F32 | DType::F64 => Rule::Float,
        DType::I8 | DType::I16 | DType::I32 | DType::U8 => Rule::Whole(i32::MIN.into(), i32::MAX.into()),
        DType::I64 => Rule::Whole(i64::MIN.into(), i64::MAX.into()),
        DType::U32 => Rule::Whole(0, u32::MAX.into()),
        DType::U64 => Rule::Whole(0, u64::MAX.into()),
        DType::Bool => Rule::Bool,
        DType::U16 if extensions => Rule::Whole(0, u16::MAX.into()),
        DType::U16 | DType::F16 | DType::BF16 | DType::String => return None,
    })
}

/// Writes an answer, in the order of the outputs.
///
/// # Arguments
/// * `rows`: those of the batch that are the request's; all for `None`.
///
/// # Returns
/// Whether the outputs have these rows and JSON can carry them; nothing is written where not.
pub fn write(
    out: &mut Vec<u8>,
    form: Form,
    outputs: &[OutputView<'_>],
    rows: Option<&Range<usize>>,
    options: &Options,
) -> bool {
    let parts: Option<Vec<_>> = outputs.iter().map(|output| part(output, rows, options)).collect();
    match (parts.as_deref(), form) {
        (None | Some([]), _) => false,
        (Some(parts), Form::Column) => {
            out.extend_from_slice(b"{\n    \"outputs\": ");
            put_named(out, parts, "    ", put_array);
            out.extend_from_slice(b"\n}");
            true
        }
        (Some(parts), Form::Row) => put_rows(out, parts).is_some(),
    }
}

/// Whether JSON has a form for an output; whether it can carry its values is seen when they are there.
pub fn carries(name: &str, dtype: DType, options: &Options) -> bool {
    match dtype {
        DType::F16 | DType::BF16 | DType::U16 => options.extensions,
        // These are {"b64": ...}.
        DType::String => !name.ends_with("_bytes"),
        _ => true,
    }
}

/// A request's part of an output, where JSON can carry it.
fn part<'a>(output: &OutputView<'a>, rows: Option<&Range<usize>>, options: &Options) -> Option<Part<'a>> {
    let part = output.part(rows)?;
    // numpy's bfloat16 is no kind of float, so it is not looked at.
    let said = !options.strict || matches!(part.dtype, DType::BF16) || all_finite(part.dtype, part.data);
    (carries(part.name, part.dtype, options) && said && part.is_text()).then_some(part)
}

fn put_rows(out: &mut Vec<u8>, parts: &[Part<'_>]) -> Option<()> {
    let count = *parts.first()?.shape.first()?;
    if parts.iter().any(|part| part.shape.first() != Some(&count)) {
        return None;
    }
    out.extend_from_slice(b"{\n    \"predictions\": [");
    for row in 0..count {
        if row > 0 {
            out.extend_from_slice(b", ");
        }
        put_named(out, parts, "        ", |out, part| put_row(out, part, row));
    }
    out.extend_from_slice(b"\n    ]\n}");
    Some(())
}

/// Writes the only output without its name, or all with theirs.
fn put_named(out: &mut Vec<u8>, parts: &[Part<'_>], indent: &str, put: impl Fn(&mut Vec<u8>, &Part<'_>)) {
    if let [part] = parts {
        return put(out, part);
    }
    for (index, part) in parts.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"{\n" } else { b",\n" });
        out.extend_from_slice(indent.as_bytes());
        out.extend_from_slice(b"    ");
        put_string(out, part.name);
        out.extend_from_slice(b": ");
        put(out, part);
    }
    out.push(b'\n');
    out.extend_from_slice(indent.as_bytes());
    out.push(b'}');
}
