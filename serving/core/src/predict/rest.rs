//! REST's `:predict`, and the Open Inference Protocol's `/infer`.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, ORIGIN, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::encoding::{self, Encoding};
use super::{Declined, Overload, Prediction};
use crate::batch::{Key, Plan};
use crate::core::Core;
use crate::forms::{DType, json, json_string, v2_rest};
use crate::host::Answer;
use crate::transport::Context;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");
/// JSON from this size on waits for the plan that Python is asked for: Python reads so much slowly, and not all of it.
const LARGE: usize = 1 << 16;

/// Answers or refuses a request; `None` where Python must answer, and `logged` then says whether it is to log it.
pub async fn rest(
    core: &Arc<Core>,
    parts: &http::request::Parts,
    body: &Bytes,
    context: &mut Context,
    logged: &mut Option<bool>,
) -> Option<Answer> {
    let headers = &parts.headers;
    // Python knows what a browser's credentials are worth.
    let browser = headers.contains_key(ORIGIN) || headers.contains_key(FETCH_SITE);
    let plain = !headers.contains_key(CONTENT_ENCODING) && !browser;
    if !core.options.usual_rest || parts.method != Method::POST || parts.uri.query().is_some() || !plain {
        return None;
    }
    let deadline = context.arrived.checked_add(core.options.rest_timeout);
    let target = Target::of(parts.uri.path())?;
    let method = match target.api {
        Version::V1 => "predict",
        Version::V2 => "infer",
    };
    let mut prediction = Prediction::new(core, (method, "REST"), headers, context, deadline, logged);
    prediction.patient = body.len() > LARGE;
    let (answered, before, after) = match target.api {
        Version::V1 => (v1(prediction, &target, body).await, "\n    ", "\n"),
        Version::V2 => (v2(prediction, &target, body).await, "", ""),
    };
    match answered {
        Ok((headers, body)) => Some(Answer { status: StatusCode::OK, headers, body: body.into(), facts: None }),
        Err(Declined::HandOver) => None,
        Err(Declined::Overload(overload)) => Some(refusal(&overload, before, after)),
    }
}

/// TensorFlow Serving's `:predict`.
async fn v1(
    mut prediction: Prediction<'_>,
    target: &Target<'_>,
    body: &Bytes,
) -> Result<(HeaderMap, Vec<u8>), Declined> {
    let options = &prediction.core.options;
    let options = json::Options {
        strict: options.strict_json,
        extensions: options.json_extensions,
        max_depth: options.max_json_depth,
    };
    let head = json::head(body).ok_or(Declined::HandOver)?;
    let key = Key::new(target.model, target.version, target.label, head.signature, std::iter::empty());
    let read = |plan: &Plan| {
        let carries = |(name, dtype): &(String, DType)| json::carries(name, *dtype, &options);
        plan.outputs().iter().all(carries).then(|| head.read(&plan.signature, &options))?
    };
    let answered = prediction.compute(key, read).await?;
    let mut out = Vec::new();
    if !json::write(&mut out, head.form, &answered.views(), answered.range.as_ref(), &options) {
        return Err(answered.decline());
    }
    prediction.count(answered);
    Ok((content(JSON), out))
}

/// The Open Inference Protocol's `/infer`.
async fn v2(
    mut prediction: Prediction<'_>,
    target: &Target<'_>,
    body: &Bytes,
) -> Result<(HeaderMap, Vec<u8>), Declined> {
    let headers = prediction.headers;
    let options = &prediction.core.options;
    let json_length = headers.get(JSON_LENGTH).map(HeaderValue::as_bytes);
    let head = v2_rest::head(body, json_length, options.max_json_depth).ok_or(Declined::HandOver)?;
    let wanted = head.outputs.iter().map(|output| output.name);
    let key = Key::new(target.model, target.version, None, head.signature.unwrap_or_default(), wanted);
    let answered = prediction.compute(key, |plan| head.read(&plan.signature, options.max_json_depth)).await?;
    let version = answered.plan.version;
    let answer = v2_rest::Answer { model: target.model, version, id: head.id, signature: head.signature };
    let binary = |index: usize| head.outputs.get(index).map_or(head.binary, |output| output.binary);
    let views: Vec<_> = answered.views().into_iter().enumerate().map(|(index, view)| (view, binary(index))).collect();
    let mut out = Vec::new();
    let written = v2_rest::write(&mut out, &answer, &views, answered.range.as_ref(), options.strict_json);
    let mut fields = match written {
        None => return Err(answered.decline()),
        Some(v2_rest::Body::Json) => content(JSON),
        Some(v2_rest::Body::Binary(length)) => {
            let mut fields = content(BINARY);
            fields.insert(JSON_LENGTH, HeaderValue::from(length));
            fields
        }
    };
    let encoding = if out.len() < encoding::LEAST { None } else { Encoding::preferred(headers) };
    if let Some(encoding) = encoding {
        out = encoding.compress(&out).await.map_err(|_| Declined::HandOver)?;
        fields.insert(CONTENT_ENCODING, encoding.name());
    }
    prediction.count(answered);
    Ok((fields, out))
}

#[derive(Clone, Copy)]
enum Version {
    V1,
    V2,
}

/// What the URL of a prediction says.
struct Target<'a> {
    api: Version,
    model: &'a str,
    version: Option<i64>,
    label: Option<&'a str>,
}

impl<'a> Target<'a> {
    /// Reads a path; `None` for anything but a prediction, and for names with escapes.
    fn of(path: &'a str) -> Option<Target<'a>> {
        if path.contains('%') {
            return None;
        }
        let (api, rest) = match path.strip_prefix("/v1/models/") {
            Some(rest) => (Version::V1, rest.strip_suffix(":predict")?),
            None => (Version::V2, path.strip_prefix("/v2/models/")?.strip_suffix("/infer")?),
        };
        let mut parts = rest.split('/');
        let model = parts.next().filter(|name| !name.is_empty() && !name.contains(':'))?;
        let (mut version, mut label) = (None, None);
        match (parts.next(), parts.next(), api) {
            (None, _, _) => {}
            (Some("versions"), Some(number), _) => {
                let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
                version = Some(number.parse().ok().filter(|_| digits)?);
            }
            (Some("labels"), Some(name), Version::V1) if !name.is_empty() && !name.contains(':') => label = Some(name),
            _ => return None,
        }
        parts.next().is_none().then_some(Target { api, model, version, label })
    }
}

fn content(kind: HeaderValue) -> HeaderMap {
    let mut fields = HeaderMap::new();
    fields.insert(CONTENT_TYPE, kind);
    fields
}

fn refusal(overload: &Overload, before: &str, after: &str) -> Answer {
    let mut headers = content(JSON);
    if let Some(time) = overload.retry_after {
        // The smallest number that the header can say is one second.
        headers.insert(RETRY_AFTER, HeaderValue::from(time.as_secs_f64().ceil().max(1.0) as u64));
    }
    let body = format!("{{{before}\"error\": {}{after}}}", json_string(&overload.text));
    Answer { status: overload.cause.status().1, headers, body: body.into(), facts: None }
}
