// The class of an image, over gRPC: npm install, then node grpc.mjs shirt.png [localhost:8500] [MODEL]
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const [image, address = "localhost:8500", model = "fashion"] = process.argv.slice(2);

// TensorFlow Serving's own .proto files do as well.
const definition = protoLoader.loadSync("modelyard/wire/protos/serving.proto", {
  includeDirs: [fileURLToPath(new URL("../..", import.meta.url))],
  keepCase: true,
  defaults: true,
});
const { serving } = grpc.loadPackageDefinition(definition).tensorflow;
const client = new serving.PredictionService(address, grpc.credentials.createInsecure());

const request = {
  model_spec: { name: model, signature_name: "image_bytes" },
  inputs: {
    image_bytes: { dtype: "DT_STRING", tensor_shape: { dim: [{ size: 1 }] }, string_val: [await readFile(image)] },
  },
};
client.Predict(request, { deadline: Date.now() + 10_000 }, (error, answer) => {
  client.close();
  if (error) throw error;
  const { label, probabilities } = answer.outputs;
  // Numbers come as they lie in memory, or in a field of their own: read both.
  const content = probabilities.tensor_content;
  const floats = content.length
    ? new Float32Array(content.buffer.slice(content.byteOffset, content.byteOffset + content.length))
    : probabilities.float_val;
  console.log(label.string_val[0].toString(), Math.max(...floats).toFixed(3));
});
