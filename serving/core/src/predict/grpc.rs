//! gRPC's Predict and ModelInfer.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::{Declined, Overload, Prediction};
use crate::batch::Key;
use crate::core::Core;
use crate::forms::{AnswerSpec, predict_grpc, v2_grpc, v2_rest};
use crate::transport::{Context, Refusal};

const PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";
const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
/// Room for an answer that is taken at once; a larger one takes more as it is written.
const USUAL_ANSWER: usize = 512;

/// Answers a call with a message and gRPC's prefix, or refuses it; `None` where Python must answer, and `logged` then
/// says whether it is to log it.
pub async fn grpc(
    core: &Arc<Core>,
    parts: &http::request::Parts,
    message: &Bytes,
    context: &mut Context,
    deadline: Option<Instant>,
    logged: &mut Option<bool>,
) -> Option<Result<Bytes, Refusal>> {
    let headers = &parts.headers;
    let answered = match parts.uri.path() {
        PREDICT => {
            predict(Prediction::new(core, ("Predict", "GRPC"), headers, context, deadline, logged), message).await
        }
        INFER => {
            infer(Prediction::new(core, ("ModelInfer", "GRPC"), headers, context, deadline, logged), message).await
        }
        _ => return None,
    };
    match answered {
        Ok(frame) => Some(Ok(frame)),
        Err(Declined::HandOver) => None,
        Err(Declined::Overload(Overload { cause, text, retry_after })) => {
            Some(Err(Refusal { code: cause.status().0, text, retry_after }))
        }
    }
}

/// TensorFlow Serving's Predict.
async fn predict(mut prediction: Prediction<'_>, message: &Bytes) -> Result<Bytes, Declined> {
    let head = predict_grpc::head(message).ok_or(Declined::HandOver)?;
    let key = Key::new(head.model, head.version, head.label, head.signature, head.outputs.iter().copied());
    let answered = prediction.compute(key, |plan| head.read(&plan.signature)).await?;
    let plan = &answered.plan;
    let spec = AnswerSpec { model: &plan.key.model, version: plan.version, signature: &plan.signature.name };
    let tensor_content = prediction.core.options.tensor_content;
    let write =
        |out: &mut _| predict_grpc::write(out, &spec, &answered.views(), answered.range.as_ref(), tensor_content);
    let Some(frame) = framed(write) else { return Err(answered.decline()) };
    prediction.count(answered);
    Ok(frame)
}

/// The Open Inference Protocol's ModelInfer.
async fn infer(mut prediction: Prediction<'_>, message: &Bytes) -> Result<Bytes, Declined> {
    let head = v2_grpc::head(message).ok_or(Declined::HandOver)?;
    let signature = head.signature.unwrap_or_default();
    let key = Key::new(head.model, head.version, None, signature, head.outputs.iter().copied());
    let answered = prediction.compute(key, |plan| head.read(&plan.signature)).await?;
    let version = answered.plan.version;
    let answer = v2_rest::Answer { model: head.model, version, id: head.id, signature: head.signature };
    let write = |out: &mut _| v2_grpc::write(out, &answer, &answered.views(), answered.range.as_ref());
    let Some(frame) = framed(write) else { return Err(answered.decline()) };
    prediction.count(answered);
    Ok(frame)
}

/// A message with gRPC's prefix, where it can be written.
fn framed(write: impl FnOnce(&mut Vec<u8>) -> bool) -> Option<Bytes> {
    let mut frame = Vec::with_capacity(USUAL_ANSWER);
    frame.resize(5, 0);
    if !write(&mut frame) {
        return None;
    }
    let size = u32::try_from(frame.len() - 5).ok()?;
    frame[1..5].copy_from_slice(&size.to_be_bytes());
    Some(frame.into())
}
