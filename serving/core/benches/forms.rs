//! Nanoseconds per request of each reader and writer: 784 float32 in, 10 out, one row.
//!
//!     cargo bench --no-default-features --bench forms

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use modelyard_core::forms::{
    AnswerSpec, DType, InputSpec, OutputView, Signature, json, predict_grpc, v2_grpc, v2_rest,
};

const PIXELS: usize = 784;
/// At least so long is a round.
const ROUND: Duration = Duration::from_micros(200);

fn main() {
    let mut state = 1u64;
    let pixels: Vec<f64> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    })
    .take(PIXELS)
    .collect();
    let texts = |text: fn(f64) -> String| pixels.iter().map(|&value| text(value)).collect::<Vec<_>>().join(", ");
    // As clients round pixels, and as Python's json writes a float32.
    let (short, long) = (texts(|value| format!("{value:.7}")), texts(|value| format!("{:?}", f64::from(value as f32))));
    let raw: Vec<u8> = pixels.iter().flat_map(|&value| (value as f32).to_le_bytes()).collect();
    read(&short, &long, &raw);
    write();
}

fn read(short: &str, long: &str, raw: &[u8]) {
    let spec = InputSpec { name: "images".into(), dtype: DType::F32, shape: Some(vec![-1, PIXELS as i64]) };
    let signature = Signature { name: "serving_default".into(), inputs: vec![spec] };
    let options = json::Options { strict: false, extensions: false, max_depth: 100 };

    let shape = field(2, &[field(2, &[vec![8, 1]]), field(2, &[vec![8, 0x90, 6]])]);
    let tensor = field(2, &[vec![8, 1], shape, field(4, &[raw.to_vec()])]);
    let body: Bytes =
        [field(1, &[field(1, &[b"fashion".to_vec()])]), field(2, &[field(1, &[b"images".to_vec()]), tensor])]
            .concat()
            .into();
    time("gRPC Predict, read", || predict_grpc::head(&body).and_then(|head| head.read(&signature)));

    for (name, numbers) in [("7 digits", short), ("as Python writes float32", long)] {
        let body = format!("{{\"instances\": [[{numbers}]]}}");
        time(&format!("REST v1, {name}, read"), || {
            json::head(body.as_bytes()).and_then(|head| head.read(&signature, &options))
        });
        let input = format!("\"name\":\"images\",\"shape\":[1,784],\"datatype\":\"FP32\",\"data\":[{numbers}]");
        let body = Bytes::from(format!("{{\"inputs\":[{{{input}}}]}}"));
        time(&format!("v2 JSON, {name}, read"), || {
            v2_rest::head(&body, None, 100).and_then(|head| head.read(&signature, 100))
        });
    }

    let text = "{\"inputs\":[{\"name\":\"images\",\"shape\":[1,784],\"datatype\":\"FP32\",\
                \"parameters\":{\"binary_data_size\":3136}}],\"outputs\":[{\"name\":\"scores\",\
                \"parameters\":{\"binary_data\":true}}]}";
    let (length, body) = (text.len().to_string(), Bytes::from([text.as_bytes(), raw].concat()));
    time("v2 binary, read", || {
        v2_rest::head(&body, Some(length.as_bytes()), 100).and_then(|head| head.read(&signature, 100))
    });

    let input = [field(1, &[b"images".to_vec()]), field(2, &[b"FP32".to_vec()]), field(3, &[vec![1, 0x90, 6]])];
    let body: Bytes = [field(1, &[b"fashion".to_vec()]), field(5, &input), field(7, &[raw.to_vec()])].concat().into();
    time("v2 gRPC, read", || v2_grpc::head(&body).and_then(|head| head.read(&signature)));
}

fn write() {
    let scores: Vec<u8> = (1..11).flat_map(|rank| (0.7f32 / (rank * rank) as f32).to_le_bytes()).collect();
    let output = OutputView { name: "scores", dtype: DType::F32, shape: &[1, 10], data: &scores, ends: &[] };
    let outputs = [output];
    let spec = AnswerSpec { model: "fashion", version: 1, signature: "serving_default" };
    let answer = v2_rest::Answer { model: "fashion", version: 1, id: "", signature: None };
    let options = json::Options { strict: false, extensions: false, max_depth: 100 };
    let rows = Some(&(0..1));
    let mut out = Vec::new();
    let mut timed = |name: &str, write: &dyn Fn(&mut Vec<u8>) -> bool| {
        time(name, || {
            out.clear();
            write(&mut out).then_some(())
        });
    };
    timed("gRPC Predict, write", &|out| predict_grpc::write(out, &spec, &outputs, rows, false));
    timed("REST v1, row form, write", &|out| json::write(out, json::Form::Row, &outputs, rows, &options));
    timed("v2 JSON, write", &|out| v2_rest::write(out, &answer, &[(output, false)], rows, false).is_some());
    timed("v2 binary, write", &|out| v2_rest::write(out, &answer, &[(output, true)], rows, false).is_some());
    timed("v2 gRPC, write", &|out| v2_grpc::write(out, &answer, &outputs, rows));
}

/// A protobuf field of bytes.
fn field(number: u8, parts: &[Vec<u8>]) -> Vec<u8> {
    let value = parts.concat();
    let mut result = vec![number << 3 | 2];
    let mut size = value.len();
    while size >= 0x80 {
        result.push(size as u8 | 0x80);
        size >>= 7;
    }
    result.push(size as u8);
    [result, value].concat()
}

/// Prints the quickest of many short rounds: on a busy machine, most are not interrupted.
fn time<T>(name: &str, mut work: impl FnMut() -> Option<T>) {
    let mut round = |calls: u32| {
        let begin = Instant::now();
        for _ in 0..calls {
            assert!(black_box(work()).is_some(), "{name}: declined");
        }
        begin.elapsed()
    };
    let mut calls = 1;
    while round(calls) < ROUND {
        calls *= 2;
    }
    let best = (0..500).map(|_| round(calls)).min().unwrap_or_default();
    println!("{name:<48} {:>8} ns", best.as_nanos() / u128::from(calls));
}
