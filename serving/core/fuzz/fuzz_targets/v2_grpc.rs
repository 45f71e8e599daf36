#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use modelyard_core_fuzz::forms::v2_grpc::head;
use modelyard_core_fuzz::{check, signatures};

fuzz_target!(|body: &[u8]| {
    let body = Bytes::copy_from_slice(body);
    for signature in &signatures() {
        if let Some(tensors) = head(&body).and_then(|head| head.read(signature)) {
            check(signature, &tensors);
        }
    }
});
