// The class of an image, over REST: node rest.mjs shirt.png [http://localhost:8501] [MODEL]
// fetch is the browsers' too: there the server needs --rest_api_enable_cors_support.
import { readFile } from "node:fs/promises";

const [image, url = "http://localhost:8501", model = "fashion"] = process.argv.slice(2);

const response = await fetch(`${url}/v1/models/${model}:predict`, {
  method: "POST",
  body: JSON.stringify({
    signature_name: "image_bytes",
    instances: [{ b64: (await readFile(image)).toString("base64") }],
  }),
});
const answer = await response.json();
if (!response.ok) throw new Error(`${response.status}: ${answer.error}`);
const [{ label, probabilities }] = answer.predictions;
console.log(label, Math.max(...probabilities).toFixed(3));
