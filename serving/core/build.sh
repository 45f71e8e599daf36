#!/bin/sh
# Builds the native core as a wheel in target/wheels. Where it cannot be built, one line says why, and that is no failure:
# modelyard serves without it. Sources that do not compile are one.
#
#   sh serving/core/build.sh .venv
set -eu
environment=$1
core=$(dirname "$0")

without() {
  echo "The native core is not built: $1. The server uses --transport=python, which is slower."
  exit 0
}

command -v cargo >/dev/null || without "there is no cargo (install Rust 1.85 or newer for it)"
command -v cc >/dev/null || without "there is no C compiler, which cargo links with"
host=$(rustc -vV | sed -n 's/^host: //p')
if ! problem=$(cargo fetch --quiet --locked --target "$host" --manifest-path "$core/Cargo.toml" 2>&1); then
  without "cargo cannot get its crates ($(echo "$problem" | sed -n 's/^error: //p' | head -n 1))"
fi

echo "Building the native core (once; a minute or two) ..."
wheels=$core/target/wheels
rm -f "$wheels"/*.whl
"$environment/bin/maturin" build --quiet --release --locked --manifest-path "$core/Cargo.toml" \
  --interpreter "$environment/bin/python" --out "$wheels"
touch "$environment/.wheel"
