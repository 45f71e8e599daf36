//! Entry points for the differential tests, which hold each reader and writer against Python's general path.

use std::ops::Range;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{AnswerSpec, DType, InputSpec, OutputView, Signature, Tensor, ends_of_strings, v2_rest};

/// Name, dtype and sizes of each input.
type Inputs = Vec<(String, String, Option<Vec<i64>>)>;
/// Name, dtype, sizes and bytes of an output; of strings, lengths and bytes.
type Output = (String, String, Vec<usize>, Vec<u8>);
type Outputs = Vec<Output>;
/// Sizes and bytes of each tensor, in the signature's order.
type Read<'py> = Vec<(Vec<usize>, Bound<'py, PyBytes>)>;
/// First row, and the one behind the last.
type Rows = Option<(usize, usize)>;

/// Model, version, id, and the signature that the request named.
type Answer = (String, i64, String, Option<String>);

/// The readers and writers of the usual forms.
#[pymodule]
pub(crate) mod forms {
    use super::*;
    use crate::forms::{json, predict_grpc, v2_grpc, v2_rest};

    /// Model, version, label, signature and outputs of a request.
    #[pyfunction]
    #[allow(clippy::type_complexity)]
    fn predict_head(body: Vec<u8>) -> Option<(String, Option<i64>, Option<String>, String, Vec<String>)> {
        let body = Bytes::from(body);
        let head = predict_grpc::head(&body)?;
        let outputs = head.outputs.iter().map(ToString::to_string).collect();
        Some((head.model.into(), head.version, head.label.map(Into::into), head.signature.into(), outputs))
    }

    #[pyfunction]
    fn read_predict<'py>(py: Python<'py>, body: Vec<u8>, inputs: Inputs) -> PyResult<Option<Read<'py>>> {
        let (body, signature) = (Bytes::from(body), signature(inputs)?);
        Ok(predict_grpc::head(&body).and_then(|head| head.read(&signature)).map(|read| tensors(py, &read)))
    }

    #[pyfunction]
    #[pyo3(signature = (spec, outputs, *, rows, as_content))]
    fn write_predict<'py>(
        py: Python<'py>,
        spec: (String, i64, String),
        outputs: Outputs,
        rows: Rows,
        as_content: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let spec = AnswerSpec { model: &spec.0, version: spec.1, signature: &spec.2 };
        let mut out = Vec::new();
        let ends = ends(&outputs)?;
        let written = predict_grpc::write(&mut out, &spec, &views(&outputs, &ends)?, range(rows).as_ref(), as_content);
        Ok(written.then(|| PyBytes::new(py, &out)))
    }

    /// Form, signature and tensors of a request.
    #[pyfunction]
    #[pyo3(signature = (body, inputs, *, extensions, max_depth))]
    #[allow(clippy::type_complexity)]
    fn read_json<'py>(
        py: Python<'py>,
        body: &[u8],
        inputs: Inputs,
        extensions: bool,
        max_depth: usize,
    ) -> PyResult<Option<(&'static str, String, Read<'py>)>> {
        let options = json::Options { strict: false, extensions, max_depth };
        let signature = signature(inputs)?;
        let read = json::head(body).and_then(|head| Some((head, head.read(&signature, &options)?)));
        Ok(read.map(|(head, read)| {
            let form = match head.form {
                json::Form::Row => "row",
                json::Form::Column => "column",
            };
            (form, head.signature.into(), tensors(py, &read))
        }))
    }

    #[pyfunction]
    #[pyo3(signature = (form, outputs, *, rows, strict, extensions))]
    fn write_json<'py>(
        py: Python<'py>,
        form: &str,
        outputs: Outputs,
        rows: Rows,
        strict: bool,
        extensions: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let form = if form == "row" { json::Form::Row } else { json::Form::Column };
        let options = json::Options { strict, extensions, max_depth: 0 };
        let mut out = Vec::new();
        let ends = ends(&outputs)?;
        let written = json::write(&mut out, form, &views(&outputs, &ends)?, range(rows).as_ref(), &options);
        Ok(written.then(|| PyBytes::new(py, &out)))
    }

    /// Id, signature, outputs with their forms, and tensors of a request.
    #[pyfunction]
    #[pyo3(signature = (body, json_length, inputs, *, max_depth))]
    #[allow(clippy::type_complexity)]
    fn read_v2_rest<'py>(
        py: Python<'py>,
        body: Vec<u8>,
        json_length: Option<&[u8]>,
        inputs: Inputs,
        max_depth: usize,
    ) -> PyResult<Option<(String, Option<String>, Vec<(String, bool)>, bool, Read<'py>)>> {
        let (body, signature) = (Bytes::from(body), signature(inputs)?);
        let read = v2_rest::head(&body, json_length, max_depth)
            .and_then(|head| Some((head.read(&signature, max_depth)?, head)));
        Ok(read.map(|(read, head)| {
            let outputs = head.outputs.iter().map(|output| (output.name.into(), output.binary)).collect();
            (head.id.into(), head.signature.map(Into::into), outputs, head.binary, tensors(py, &read))
        }))
    }

    /// An answer, and the length of its JSON part where tensors follow.
    #[pyfunction]
    #[pyo3(signature = (answer, outputs, binary, *, rows, strict))]
    #[allow(clippy::type_complexity)]
    fn write_v2_rest<'py>(
        py: Python<'py>,
        answer: Answer,
        outputs: Outputs,
        binary: Vec<bool>,
        rows: Rows,
        strict: bool,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Option<usize>)>> {
        let ends = ends(&outputs)?;
        let outputs: Vec<_> = views(&outputs, &ends)?.into_iter().zip(binary).collect();
        let mut out = Vec::new();
        let written = v2_rest::write(&mut out, &echoed(&answer), &outputs, range(rows).as_ref(), strict);
        Ok(written.map(|body| match body {
            v2_rest::Body::Json => (PyBytes::new(py, &out), None),
            v2_rest::Body::Binary(length) => (PyBytes::new(py, &out), Some(length)),
        }))
    }

    /// Model, version, id, signature, outputs and tensors of a request.
    #[pyfunction]
    #[allow(clippy::type_complexity)]
    fn read_v2_grpc<'py>(
        py: Python<'py>,
        body: Vec<u8>,
        inputs: Inputs,
    ) -> PyResult<Option<(String, Option<i64>, String, Option<String>, Vec<String>, Read<'py>)>> {
        let (body, signature) = (Bytes::from(body), signature(inputs)?);
        let read = v2_grpc::head(&body).and_then(|head| Some((head.read(&signature)?, head)));
        Ok(read.map(|(read, head)| {
            let outputs = head.outputs.iter().map(ToString::to_string).collect();
            let (signature, read) = (head.signature.map(Into::into), tensors(py, &read));
            (head.model.into(), head.version, head.id.into(), signature, outputs, read)
        }))
    }

    #[pyfunction]
    #[pyo3(signature = (answer, outputs, *, rows))]
    fn write_v2_grpc<'py>(
        py: Python<'py>,
        answer: Answer,
        outputs: Outputs,
        rows: Rows,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let ends = ends(&outputs)?;
        let (answer, outputs, rows) = (echoed(&answer), views(&outputs, &ends)?, range(rows));
        let mut out = Vec::new();
        let written = v2_grpc::write(&mut out, &answer, &outputs, rows.as_ref());
        Ok(written.then(|| PyBytes::new(py, &out)))
    }
}

fn echoed((model, version, id, signature): &Answer) -> v2_rest::Answer<'_> {
    v2_rest::Answer { model, version: *version, id, signature: signature.as_deref() }
}

fn dtype(name: &str) -> PyResult<DType> {
    DType::by_name(name).ok_or_else(|| PyValueError::new_err(format!("no dtype of the usual forms: {name}")))
}

fn signature(inputs: Inputs) -> PyResult<Signature> {
    let spec = |(name, kind, shape): (String, String, _)| Ok(InputSpec { name, dtype: dtype(&kind)?, shape });
    let inputs = inputs.into_iter().map(spec).collect::<PyResult<_>>()?;
    Ok(Signature { name: "serving_default".into(), inputs })
}

fn tensors<'py>(py: Python<'py>, read: &[Tensor]) -> Read<'py> {
    read.iter().map(|tensor| (tensor.shape.to_vec(), PyBytes::new(py, &tensor.data))).collect()
}

/// Where the strings of each output end.
fn ends(outputs: &Outputs) -> PyResult<Vec<Vec<usize>>> {
    let ends = |(_, kind, _, data): &Output| match DType::of_output(kind) {
        Some(DType::String) => ends_of_strings(data).ok_or_else(|| PyValueError::new_err("no strings")),
        _ => Ok(Vec::new()),
    };
    outputs.iter().map(ends).collect()
}

fn views<'a>(outputs: &'a Outputs, ends: &'a [Vec<usize>]) -> PyResult<Vec<OutputView<'a>>> {
    let view = |((name, kind, shape, data), ends): (&'a Output, &'a Vec<usize>)| {
        let dtype =
            DType::of_output(kind).ok_or_else(|| PyValueError::new_err(format!("no dtype of an output: {kind}")))?;
        Ok(OutputView { name, dtype, shape, data, ends })
    };
    outputs.iter().zip(ends).map(view).collect()
}

fn range(rows: Rows) -> Option<Range<usize>> {
    rows.map(|(start, end)| start..end)
}
