//! Doors for the differential tests, which hold each reader and writer against Python's general path.

use std::ops::Range;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::{AnswerSpec, DType, InputSpec, OutputView, Signature, Tensor};

/// Name, dtype and sizes of each input.
type Inputs = Vec<(String, String, Option<Vec<i64>>)>;
/// Name, dtype, sizes and bytes of each output.
type Outputs = Vec<(String, String, Vec<usize>, Vec<u8>)>;
/// Sizes and bytes of each tensor, in the signature's order.
type Read<'py> = Vec<(Vec<usize>, Bound<'py, PyBytes>)>;
/// First row, and the one behind the last.
type Rows = Option<(usize, usize)>;

/// The readers and writers of the usual forms.
#[pymodule]
pub(crate) mod forms {
    use super::*;
    use crate::forms::{json, predict_grpc};

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
        let written = predict_grpc::write(&mut out, &spec, &views(&outputs)?, range(rows).as_ref(), as_content);
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
        let written = json::write(&mut out, form, &views(&outputs)?, range(rows).as_ref(), &options);
        Ok(written.then(|| PyBytes::new(py, &out)))
    }
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

fn views(outputs: &Outputs) -> PyResult<Vec<OutputView<'_>>> {
    outputs.iter().map(|(name, kind, shape, data)| Ok(OutputView { name, dtype: dtype(kind)?, shape, data })).collect()
}

fn range(rows: Rows) -> Option<Range<usize>> {
    rows.map(|(start, end)| start..end)
}
