// The class of an image, over REST: java Rest.java shirt.png [http://localhost:8501] [MODEL]
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;

public class Rest {
  public static void main(String[] arguments) throws Exception {
    String image = Base64.getEncoder().encodeToString(Files.readAllBytes(Path.of(arguments[0])));
    String url = arguments.length > 1 ? arguments[1] : "http://localhost:8501";
    String model = arguments.length > 2 ? arguments[2] : "fashion";
    String body = "{\"signature_name\": \"image_bytes\", \"instances\": [{\"b64\": \"" + image + "\"}]}";
    HttpRequest request =
        HttpRequest.newBuilder(URI.create(url + "/v1/models/" + model + ":predict"))
            .POST(HttpRequest.BodyPublishers.ofString(body))
            .build();
    HttpResponse<String> answer =
        HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    if (answer.statusCode() != 200) throw new IllegalStateException(answer.statusCode() + ": " + answer.body());
    System.out.println(answer.body());
  }
}
