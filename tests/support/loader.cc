// Loads a SavedModel as tensorflow_model_server does and answers lines of text.
//
//   loader VERSION_DIR OPS_SO SIGNATURE < lines > answers
//
// Follows TF Serving: main.cc switches XLA off, saved_model_bundle_factory.cc calls LoadSavedModel
// with the tag "serve" and default options, predict_util.cc takes the names of tensors from the
// signature. All lines are one batch. Prints, for each, the text and the log-probability, a tab
// between them; exits with 1 and a message when something is not OK.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "tensorflow/c/c_api.h"
#include "tensorflow/cc/saved_model/loader.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/protobuf/meta_graph.pb.h"
#include "tensorflow/core/public/session.h"

namespace tensorflow {
void DisableXlaCompilation();  // compiler/jit/flags.h, which the wheel leaves out
}

namespace {

int Fail(const std::string& message) {
  std::cerr << message << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return Fail("usage: loader VERSION_DIR OPS_SO SIGNATURE < lines");
  tensorflow::DisableXlaCompilation();
  TF_Status* library_status = TF_NewStatus();
  TF_LoadLibrary(argv[2], library_status);  // a server has these kernels linked in
  if (TF_GetCode(library_status) != TF_OK) return Fail(TF_Message(library_status));

  tensorflow::SavedModelBundle bundle;
  absl::Status status = tensorflow::LoadSavedModel(
      tensorflow::SessionOptions(), tensorflow::RunOptions(), argv[1], {"serve"}, &bundle);
  if (!status.ok()) return Fail(status.ToString());
  const auto& signatures = bundle.GetSignatures();
  const auto found = signatures.find(argv[3]);
  if (found == signatures.end()) return Fail(std::string("no signature ") + argv[3]);
  const tensorflow::SignatureDef& signature = found->second;
  if (signature.method_name() != "tensorflow/serving/predict") return Fail("not for Predict");

  std::vector<std::string> lines;
  for (std::string line; std::getline(std::cin, line);) lines.push_back(line);
  const int64_t rows = lines.size();
  tensorflow::Tensor text(tensorflow::DT_STRING, {rows});
  for (int64_t i = 0; i < rows; ++i) text.flat<tensorflow::tstring>()(i) = lines[i];

  std::vector<tensorflow::Tensor> outputs;
  status = bundle.session->Run(
      {{signature.inputs().at("text").name(), text}},
      {signature.outputs().at("text").name(), signature.outputs().at("log_prob").name()}, {},
      &outputs);
  if (!status.ok()) return Fail(status.ToString());
  for (const auto& output : outputs) {
    // What server-side batching demands of every output.
    if (output.dims() < 1 || output.dim_size(0) != rows) return Fail("rows were lost");
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::printf("%s\t%.9g\n", outputs[0].flat<tensorflow::tstring>()(i).c_str(),
                outputs[1].flat<float>()(i));
  }
  return 0;
}
