// The AWS SDK for Go, version 2.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

const (
	mib  = 1 << 20
	many = 1203
)

var (
	ctx    = context.Background()
	bucket = fmt.Sprintf("day-%x", bytesOf(6))
	client = s3.New(s3.Options{
		BaseEndpoint: aws.String(os.Getenv("FLOTILLA_S3_ENDPOINT")),
		Region:       "us-east-1",
		UsePathStyle: true,
		Credentials:  credentials.NewStaticCredentialsProvider(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), ""),
	})
	oddNames = []string{
		"odd/with space", "odd/plus+plus", "odd/100%", "odd/%41", "odd/a//b", "odd/é/日本語/🚢", "odd/a&b<c>\"d'", "odd/?query#hash",
		"odd/" + strings.Repeat("x", 1000),
	}
	failed = false
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must(ok bool, format string, words ...any) {
	if !ok {
		panic(fmt.Sprintf(format, words...))
	}
}

func refused(err error, code string) {
	var api smithy.APIError
	must(errors.As(err, &api) && api.ErrorCode() == code, "expected %s, got %v", code, err)
}

func step(name string, does func()) {
	begun := time.Now()
	defer func() {
		if why := recover(); why != nil {
			fmt.Println(why)
			fmt.Println("FAILED", name)
			failed = true
			return
		}
		fmt.Printf("ok %s  %.1f s\n", name, time.Since(begun).Seconds())
	}()
	does()
}

func bytesOf(count int) []byte {
	data := make([]byte, count)
	_, err := rand.Read(data)
	check(err)
	return data
}

func input(key string, body []byte) *s3.PutObjectInput {
	return &s3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(body)}
}

func put(key string, body []byte) {
	_, err := client.PutObject(ctx, input(key, body))
	check(err)
}

func get(key string, span *string) []byte {
	answer, err := client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key, Range: span})
	check(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	check(err)
	return body
}

func list(prefix string, page int32) (keys []string) {
	pages := s3.NewListObjectsV2Paginator(client, &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix, MaxKeys: &page})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		check(err)
		for _, entry := range page.Contents {
			keys = append(keys, *entry.Key)
		}
	}
	return keys
}

func fetch(method, address string, body []byte) string {
	request, err := http.NewRequest(method, address, bytes.NewReader(body))
	check(err)
	answer, err := http.DefaultClient.Do(request)
	check(err)
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	check(err)
	must(answer.StatusCode == 200, "%s: %s", answer.Status, read)
	return string(read)
}

func main() {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/aws/aws-sdk-go-v2/service/s3" {
				fmt.Println("version", module.Version)
			}
		}
	}
	step("make_bucket", func() {
		_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: &bucket})
		check(err)
	})
	step("put_and_get", func() {
		for _, size := range []int{0, 1, 65537, 5 * mib} {
			body, key := bytesOf(size), fmt.Sprint("size/", size)
			put(key, body)
			must(bytes.Equal(get(key, nil), body), "%d bytes differ", size)
		}
		must(len(get("size/65537", aws.String("bytes=65530-"))) == 7, "the range differs")
	})
	step("checksums_and_metadata", func() {
		for _, algorithm := range types.ChecksumAlgorithm("").Values() {
			given := input("summed", []byte("sum"))
			given.ChecksumAlgorithm = algorithm
			given.Metadata = map[string]string{"who": "b"}
			_, err := client.PutObject(ctx, given)
			switch algorithm {
			case "CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME":
				check(err)
			default: // not served, or not known to the SDK itself
				must(err != nil, "%s was taken", algorithm)
			}
		}
		head, err := client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: aws.String("summed")})
		check(err)
		must(head.Metadata["who"] == "b", "%v", head.Metadata)
	})
	step("large_by_parts", func() {
		body := bytesOf(23*mib + 5)
		// A reader that cannot seek.
		_, err := manager.NewUploader(client).Upload(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: aws.String("large"), Body: io.MultiReader(bytes.NewReader(body))})
		check(err)
		back := manager.NewWriteAtBuffer(nil)
		_, err = manager.NewDownloader(client).Download(ctx, back, &s3.GetObjectInput{Bucket: &bucket, Key: aws.String("large")})
		check(err)
		must(bytes.Equal(back.Bytes(), body), "bytes differ")
		_, err = client.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &bucket, Key: aws.String("copied +%"), CopySource: aws.String(bucket + "/large")})
		check(err)
		must(bytes.Equal(get("copied +%", nil), body), "the copy differs")
	})
	step("odd_names", func() {
		for _, key := range oddNames {
			put(key, []byte(key))
			must(string(get(key, nil)) == key, "%s differs", key)
		}
		must(len(list("odd/", 3)) == len(oddNames), "%v", list("odd/", 3))
	})
	step("many_pages_and_delete_many", func() {
		for n := range many {
			put(fmt.Sprintf("many/%05d", n), nil)
		}
		keys := list("many/", 100)
		must(len(keys) == many, "%d listed", len(keys))
		for len(keys) > 0 {
			some := keys[:min(1000, len(keys))]
			keys = keys[len(some):]
			objects := []types.ObjectIdentifier{}
			for _, key := range some {
				objects = append(objects, types.ObjectIdentifier{Key: &key})
			}
			done, err := client.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: objects}})
			check(err)
			must(len(done.Errors) == 0, "%v", done.Errors)
		}
		must(len(list("many/", 100)) == 0, "still there")
	})
	step("conditions", func() {
		once := input("once", []byte("1"))
		once.IfNoneMatch = aws.String("*")
		first, err := client.PutObject(ctx, once)
		check(err)
		once.Body = strings.NewReader("2")
		_, err = client.PutObject(ctx, once)
		refused(err, "PreconditionFailed")
		next := input("once", []byte("3"))
		next.IfMatch = first.ETag
		_, err = client.PutObject(ctx, next)
		check(err)
		_, err = client.GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: aws.String("never-was")})
		refused(err, "NoSuchKey")
	})
	step("presigned", func() {
		signer := s3.NewPresignClient(client)
		key := aws.String("signed +%")
		to, err := signer.PresignPutObject(ctx, &s3.PutObjectInput{Bucket: &bucket, Key: key})
		check(err)
		fetch(to.Method, to.URL, []byte("by url"))
		from, err := signer.PresignGetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: key})
		check(err)
		must(fetch(from.Method, from.URL, nil) == "by url", "it differs")
	})
	step("delete_everything", func() {
		for _, key := range list("", 1000) {
			_, err := client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &bucket, Key: &key})
			check(err)
		}
		_, err := client.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: &bucket})
		check(err)
	})
	if failed {
		os.Exit(1)
	}
}
