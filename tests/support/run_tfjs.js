// Runs a model of TensorFlow.js: `node run_tfjs.js DIRECTORY < batches.json > outputs.json`.
// A batch is {name: [dtype, shape, values]}, an output [shape, values].
const fs = require("fs");
const tf = require("@tensorflow/tfjs");

function readModel(directory) {
  const model = JSON.parse(fs.readFileSync(`${directory}/model.json`));
  const [{paths, weights}] = model.weightsManifest;
  const bytes = Buffer.concat(paths.map((path) => fs.readFileSync(`${directory}/${path}`)));
  const weightData = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  return {...model, weightSpecs: weights, weightData};
}

async function main() {
  const model = await tf.loadGraphModel({load: async () => readModel(process.argv[2])});
  const outputs = [];
  for (const batch of JSON.parse(fs.readFileSync(0))) {
    const inputs = {};
    for (const [name, [dtype, shape, values]] of Object.entries(batch)) {
      inputs[name] = tf.tensor(values, shape, dtype);
    }
    const output = model.execute(inputs);
    outputs.push([output.shape, Array.from(await output.data())]);
  }
  console.log(JSON.stringify(outputs));
}

main();
