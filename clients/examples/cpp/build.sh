#!/bin/sh
# Makes ./predict. On Debian: apt install g++ pkg-config libgrpc++-dev libprotobuf-dev protobuf-compiler-grpc
set -eu
cd "$(dirname "$0")"
protos=modelyard/wire/protos
mkdir -p generated
# TensorFlow Serving's own .proto files do as well.
protoc -I../.. --cpp_out=generated --grpc_out=generated --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" \
    $protos/error.proto $protos/tensorflow.proto $protos/serving.proto
# -w: protoc's code uses enumerators that TensorFlow has deprecated.
${CXX:-c++} -std=c++17 -O2 -w -Igenerated predict.cc generated/$protos/*.cc -o predict $(pkg-config --cflags --libs grpc++ protobuf)
