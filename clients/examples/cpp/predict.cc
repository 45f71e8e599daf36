// The class of an image, over gRPC: sh build.sh, then ./predict shirt.png [localhost:8500] [MODEL]
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>

#include "modelyard/wire/protos/serving.grpc.pb.h"

int main(int count, char** arguments) {
  const std::string path = count > 1 ? arguments[1] : "";
  const std::string address = count > 2 ? arguments[2] : "localhost:8500";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::cerr << "cannot read '" << path << "'\n";
    return 1;
  }
  tensorflow::serving::PredictRequest request;
  request.mutable_model_spec()->set_name(count > 3 ? arguments[3] : "fashion");
  request.mutable_model_spec()->set_signature_name("image_bytes");
  request.add_output_filter("label");
  tensorflow::TensorProto& images = (*request.mutable_inputs())["image_bytes"];
  images.set_dtype(tensorflow::DT_STRING);
  images.mutable_tensor_shape()->add_dim()->set_size(1);
  images.add_string_val(std::string(std::istreambuf_iterator<char>(file), {}));

  auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  auto stub = tensorflow::serving::PredictionService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  tensorflow::serving::PredictResponse answer;
  const grpc::Status status = stub->Predict(&context, request, &answer);
  if (!status.ok()) {
    std::cerr << status.error_code() << ": " << status.error_message() << "\n";
    return 1;
  }
  std::cout << answer.outputs().at("label").string_val(0) << "\n";
}
