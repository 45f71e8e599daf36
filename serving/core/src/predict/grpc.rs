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
/// says that it is to log it.
pub async fn grpc(
    core: &Arc<Core>,
    parts: &http::request::Parts,
    message: &Bytes,
    context: &mut Context,
    deadline: Option<Instant>,
    logged: &mut bool,
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
    let answered = prediction.compute(key, |signature| head.read(signature)).await?;
    let plan = &answered.plan;
    let spec = AnswerSpec { model: &plan.key.model, version: plan.version, signature: &plan.signature.name };
    let tensor_content = prediction.core.options.tensor_content;
    let frame =
        framed(|out| predict_grpc::write(out, &spec, &answered.views(), answered.range.as_ref(), tensor_content))?;
    prediction.count(&answered);
    Ok(frame)
}

/// The Open Inference Protocol's ModelInfer.
async fn infer(mut prediction: Prediction<'_>, message: &Bytes) -> Result<Bytes, Declined> {
    let head = v2_grpc::head(message).ok_or(Declined::HandOver)?;
    let signature = head.signature.unwrap_or_default();
    let key = Key::new(head.model, head.version, None, signature, head.outputs.iter().copied());
    let answered = prediction.compute(key, |signature| head.read(signature)).await?;
    let version = answered.plan.version;
    let answer = v2_rest::Answer { model: head.model, version, id: head.id, signature: head.signature };
    let frame = framed(|out| v2_grpc::write(out, &answer, &answered.views(), answered.range.as_ref()))?;
    prediction.count(&answered);
    Ok(frame)
}

/// A message with gRPC's prefix.
fn framed(write: impl FnOnce(&mut Vec<u8>) -> bool) -> Result<Bytes, Declined> {
    let mut frame = Vec::with_capacity(USUAL_ANSWER);
    frame.resize(5, 0);
    if !write(&mut frame) {
        return Err(Declined::HandOver);
    }
    let size = u32::try_from(frame.len() - 5).map_err(|_| Declined::HandOver)?;
    frame[1..5].copy_from_slice(&size.to_be_bytes());
    Ok(frame.into())
}
