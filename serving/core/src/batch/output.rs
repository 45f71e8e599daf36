//! Outputs of a computed batch.

use std::ops::Range;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::forms::{DType, Shape};

/// One output of a computed batch.
#[derive(Clone, Debug)]
pub struct Output {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub data: Bytes,
    /// Where each string ends in the data; empty for numbers.
    pub ends: Vec<usize>,
}

impl Output {
    /// Shape and values of some rows, or of all, as `run` returns them.
    pub fn rows<'py>(
        &self,
        py: Python<'py>,
        range: Option<Range<usize>>,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyAny>)> {
        let mut shape = self.shape.clone();
        let whole = shape.first().copied().unwrap_or(1).max(1);
        let range = range.unwrap_or(0..whole);
        if let Some(first) = shape.first_mut().filter(|first| **first > 0) {
            *first = range.len();
        }
        let values = if self.dtype == DType::String {
            let inner = self.ends.len() / whole;
            let ends = &self.ends[range.start * inner..range.end * inner];
            let begins = std::iter::once(range.start * inner).filter(|at| *at > 0).map(|at| self.ends[at - 1]);
            let begins = begins.chain((range.start == 0).then_some(0)).chain(ends.iter().copied());
            let texts = begins.zip(ends).map(|(begin, end)| PyBytes::new(py, &self.data[begin + 4..*end]));
            PyList::new(py, texts.collect::<Vec<_>>())?.into_any()
        } else {
            let row = self.data.len() / whole;
            PyBytes::new(py, &self.data[range.start * row..range.end * row]).into_any()
        };
        Ok((PyTuple::new(py, shape)?, values))
    }
}

/// An output's bytes, which stay where Python has put them.
pub fn numbers(value: &Bound<'_, PyAny>) -> PyResult<(Bytes, Vec<usize>)> {
    Ok((Bytes::from_owner(value.extract::<PyBackedBytes>()?), Vec::new()))
}

/// Strings one after the other, each behind its length, and where each ends.
pub fn strings(value: &Bound<'_, PyAny>) -> PyResult<(Bytes, Vec<usize>)> {
    let (mut data, mut ends) = (Vec::new(), Vec::new());
    for item in value.try_iter()? {
        let item = item?;
        let text = match item.cast::<PyBytes>() {
            Ok(bytes) => bytes.as_bytes(),
            Err(_) => item.cast::<PyString>()?.to_str()?.as_bytes(),
        };
        data.extend_from_slice(&u32::try_from(text.len())?.to_le_bytes());
        data.extend_from_slice(text);
        ends.push(data.len());
    }
    Ok((data.into(), ends))
}
