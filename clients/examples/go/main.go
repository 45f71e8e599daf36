// Command predict prints the class of an image, over gRPC: go run . shirt.png [localhost:8500] [MODEL]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"predict/tfs"
)

func main() {
	arguments := append(os.Args[1:], "", "", "")
	image, address, model := arguments[0], arguments[1], arguments[2]
	if address == "" {
		address = "localhost:8500"
	}
	if model == "" {
		model = "fashion"
	}
	content, err := os.ReadFile(image)
	if err != nil {
		log.Fatal(err)
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := tfs.NewPredictionServiceClient(connection).Predict(ctx, &tfs.PredictRequest{
		ModelSpec: &tfs.ModelSpec{Name: model, SignatureName: "image_bytes"},
		Inputs: map[string]*tfs.TensorProto{"image_bytes": {
			Dtype:       tfs.DataType_DT_STRING,
			TensorShape: &tfs.TensorShapeProto{Dim: []*tfs.TensorShapeProto_Dim{{Size: 1}}},
			StringVal:   [][]byte{content},
		}},
		OutputFilter: []string{"label"},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(answer.Outputs["label"].StringVal[0]))
}
