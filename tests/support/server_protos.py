"""Configuration of TF Serving whose messages its wheel does not carry: made here from their fields.

Read in tensorflow_serving/servables/tensorflow/session_bundle_config.proto (BatchingParameters) and
tensorflow_serving/config/monitoring_config.proto. Numbers do not matter: all is read as text.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

MESSAGES = {
    "BatchingParameters": {
        "max_batch_size": "google.protobuf.Int64Value",
        "batch_timeout_micros": "google.protobuf.Int64Value",
        "max_enqueued_batches": "google.protobuf.Int64Value",
        "num_batch_threads": "google.protobuf.Int64Value",
        "thread_pool_name": "google.protobuf.StringValue",
        "allowed_batch_sizes": "repeated int64",
        "pad_variable_length_inputs": "bool",
        "enable_large_batch_splitting": "google.protobuf.BoolValue",
        "max_execution_batch_size": "google.protobuf.Int64Value",
    },
    "PrometheusConfig": {"enable": "bool", "path": "string"},
    "MonitoringConfig": {"prometheus_config": "tensorflow.serving.PrometheusConfig"},
}
FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {"int64": FIELD.TYPE_INT64, "bool": FIELD.TYPE_BOOL, "string": FIELD.TYPE_STRING}


def message_class(name):
    """The class of one of `MESSAGES`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="configuration.proto",
        package="tensorflow.serving",
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name],
    )
    for message, fields in MESSAGES.items():
        added = file.message_type.add(name=message)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            added.field.append(_field(field, number, kind))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.serving.{name}"))


def _field(name, number, kind):
    repeated, kind = kind.startswith("repeated "), kind.removeprefix("repeated ")
    field = FIELD(name=name, number=number)
    field.label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = FIELD.TYPE_MESSAGE, f".{kind}"
    return field
