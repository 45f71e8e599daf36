#!/bin/sh
# Makes the stubs in tfs/, with protoc and Go's own plugins: sh generate.sh [PROTOC, such as "python -m grpc_tools.protoc"]
set -eu
cd "$(dirname "$0")"
protoc=${1:-protoc}
export GOBIN="$PWD/.bin"
go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.9
go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.5.1
# These files name no Go package, as upstream's do not.
set --
for name in error tensorflow serving; do
    file=modelyard/wire/protos/$name.proto
    set -- "$@" "--go_opt=M$file=predict/tfs" "--go-grpc_opt=M$file=predict/tfs" "$file"
done
PATH="$GOBIN:$PATH" $protoc -I../.. --go_out=. --go-grpc_out=. --go_opt=module=predict --go-grpc_opt=module=predict "$@"
