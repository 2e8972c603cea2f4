from loadslice.serve.grpc_messages import messages, text


def test_names_numbers_and_types_are_those_of_the_public_protocol() -> None:
    from tritonclient.grpc import service_pb2

    ours = messages().classes
    assert set(ours) <= {name for name in dir(service_pb2) if name[0].isupper()}
    for name, kind in ours.items():
        theirs = getattr(service_pb2, name).DESCRIPTOR.fields_by_name
        for field in kind.DESCRIPTOR.fields:
            there = theirs[field.name]
            assert (field.number, field.type, field.is_repeated) == (there.number, there.type, there.is_repeated), name


def test_what_the_public_client_writes_is_read_and_the_other_way_round() -> None:
    from tritonclient.grpc import service_pb2

    theirs = service_pb2.ModelInferRequest(model_name="m", id="7")
    theirs.parameters["a"].int64_param = -3
    theirs.parameters["b"].string_param = "ä"
    tensor = theirs.inputs.add(name="x", datatype="FP32", shape=[2, -1])
    tensor.contents.fp32_contents.extend([1.5, float("inf")])
    theirs.raw_input_contents.append(b"\0\1")
    ours = messages().classes["ModelInferRequest"].FromString(theirs.SerializeToString())
    assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)
    assert list(ours.inputs[0].contents.fp32_contents) == [1.5, float("inf")]


def test_the_file_is_there_for_clients() -> None:
    assert "service GRPCInferenceService" in text()
