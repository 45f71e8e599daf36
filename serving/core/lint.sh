#!/bin/sh
# Lints and tests the native core's Rust, where there is cargo; needs no Python.
set -eu
cd "$(dirname "$0")"

command -v cargo >/dev/null || { echo "The native core is not linted: there is no cargo."; exit 0; }
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --check; else echo "There is no rustfmt."; fi
if cargo clippy --version >/dev/null 2>&1; then
  cargo clippy --quiet --locked --all-targets -- -D warnings
else
  echo "There is no clippy."
fi
cargo test --quiet --locked --no-default-features
# Licences, sources and duplicates of the crates, by deny.toml; their advisories are on a server of their own.
if cargo deny --version >/dev/null 2>&1; then
  cargo deny --locked --offline --log-level error check bans licenses sources
else
  echo "There is no cargo-deny (cargo install cargo-deny): licences and sources of the crates are not checked."
fi
