// The class of an image, over gRPC: mvn -q compile exec:java -Dexec.args="shirt.png [localhost:8500] [MODEL]"
import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.TimeUnit;
import tensorflow.Tensorflow.DataType;
import tensorflow.Tensorflow.TensorProto;
import tensorflow.Tensorflow.TensorShapeProto;
import tensorflow.serving.PredictionServiceGrpc;
import tensorflow.serving.Serving.ModelSpec;
import tensorflow.serving.Serving.PredictRequest;
import tensorflow.serving.Serving.PredictResponse;

public class Predict {
  public static void main(String[] arguments) throws Exception {
    ByteString image = ByteString.copyFrom(Files.readAllBytes(Path.of(arguments[0])));
    String address = arguments.length > 1 ? arguments[1] : "localhost:8500";
    String model = arguments.length > 2 ? arguments[2] : "fashion";
    TensorProto images =
        TensorProto.newBuilder()
            .setDtype(DataType.DT_STRING)
            .setTensorShape(TensorShapeProto.newBuilder().addDim(TensorShapeProto.Dim.newBuilder().setSize(1)))
            .addStringVal(image)
            .build();
    PredictRequest request =
        PredictRequest.newBuilder()
            .setModelSpec(ModelSpec.newBuilder().setName(model).setSignatureName("image_bytes"))
            .putInputs("image_bytes", images)
            .addOutputFilter("label")
            .build();
    ManagedChannel channel = ManagedChannelBuilder.forTarget(address).usePlaintext().build();
    try {
      PredictResponse answer =
          PredictionServiceGrpc.newBlockingStub(channel).withDeadlineAfter(10, TimeUnit.SECONDS).predict(request);
      System.out.println(answer.getOutputsOrThrow("label").getStringVal(0).toStringUtf8());
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
  }
}
