#![no_main]

use libfuzzer_sys::fuzz_target;
use modelyard_core_fuzz::forms::json::{Options, head};
use modelyard_core_fuzz::{check, signatures};

fuzz_target!(|body: &[u8]| {
    let options = Options { strict: false, extensions: true, max_depth: 100 };
    for signature in &signatures() {
        if let Some(tensors) = head(body).and_then(|head| head.read(signature, &options)) {
            check(signature, &tensors);
        }
    }
});
