#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use modelyard_core_fuzz::forms::v2_rest::head;
use modelyard_core_fuzz::{check, signatures};

// The length of the JSON part stands before the body, where there is a byte 0 at all.
fuzz_target!(|data: &[u8]| {
    let (length, body) = match data.iter().position(|&byte| byte == 0) {
        Some(at) => (Some(&data[..at]), &data[at + 1..]),
        None => (None, data),
    };
    let body = Bytes::copy_from_slice(body);
    for signature in &signatures() {
        if let Some(tensors) = head(&body, length, 100).and_then(|head| head.read(signature, 100)) {
            check(signature, &tensors);
        }
    }
});
