// minio-go: twice, as it comes and with its signed trailers.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const mib = 1 << 20

var (
	ctx      = context.Background()
	oddNames = []string{
		"odd/with space", "odd/plus+plus", "odd/100%", "odd/%41", "odd/a//b", "odd/é/日本語/🚢", "odd/a&b<c>\"d'", "odd/?query#hash",
		"odd/" + strings.Repeat("x", 1000),
	}
)

type day struct {
	s3     *minio.Client
	bucket string
	failed bool
}

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

func (d *day) step(name string, does func()) {
	begun := time.Now()
	defer func() {
		if why := recover(); why != nil {
			fmt.Println(why)
			fmt.Println("FAILED", name)
			d.failed = true
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

func (d *day) put(key string, body []byte, options minio.PutObjectOptions) minio.UploadInfo {
	info, err := d.s3.PutObject(ctx, d.bucket, key, bytes.NewReader(body), int64(len(body)), options)
	check(err)
	return info
}

func (d *day) get(key string) []byte {
	object, err := d.s3.GetObject(ctx, d.bucket, key, minio.GetObjectOptions{})
	check(err)
	defer object.Close()
	body, err := io.ReadAll(object)
	check(err)
	return body
}

func fetch(method string, address *url.URL, body []byte) []byte {
	request, err := http.NewRequest(method, address.String(), bytes.NewReader(body))
	check(err)
	answer, err := http.DefaultClient.Do(request)
	check(err)
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	check(err)
	must(answer.StatusCode == 200, "%s: %s", answer.Status, read)
	return read
}

func (d *day) run(trailers bool) {
	suffix := map[bool]string{false: "", true: "_with_trailers"}[trailers]
	d.step("make_bucket"+suffix, func() {
		check(d.s3.MakeBucket(ctx, d.bucket, minio.MakeBucketOptions{}))
		found, err := d.s3.BucketExists(ctx, d.bucket)
		check(err)
		must(found, "no bucket")
	})
	d.step("put_and_get"+suffix, func() {
		for _, size := range []int{0, 1, 65536, 65537, 5 * mib} {
			body := bytesOf(size)
			d.put(fmt.Sprint("size/", size), body, minio.PutObjectOptions{ContentType: "text/x-day", UserMetadata: map[string]string{"Who": "b"}})
			must(bytes.Equal(d.get(fmt.Sprint("size/", size)), body), "%d bytes differ", size)
		}
		stat, err := d.s3.StatObject(ctx, d.bucket, "size/1", minio.StatObjectOptions{})
		check(err)
		must(stat.ContentType == "text/x-day" && stat.UserMetadata["Who"] == "b", "%v", stat)
	})
	d.step("checksums"+suffix, func() {
		if !trailers {
			return // minio-go itself refuses to send them
		}
		for _, kind := range []minio.ChecksumType{
			minio.ChecksumCRC32, minio.ChecksumCRC32C, minio.ChecksumSHA1, minio.ChecksumSHA256, minio.ChecksumCRC64NVME,
		} {
			d.put("summed", bytesOf(100_000), minio.PutObjectOptions{Checksum: kind})
		}
	})
	d.step("large_by_parts"+suffix, func() {
		body := bytesOf(23*mib + 5)
		d.put("large", body, minio.PutObjectOptions{PartSize: 5 * mib})
		must(bytes.Equal(d.get("large"), body), "bytes differ")
		_, err := d.s3.PutObject(ctx, d.bucket, "large of unknown length", bytes.NewReader(body), -1, minio.PutObjectOptions{PartSize: 5 * mib})
		check(err)
		must(bytes.Equal(d.get("large of unknown length"), body), "bytes differ")
		object, err := d.s3.GetObject(ctx, d.bucket, "large", minio.GetObjectOptions{})
		check(err)
		defer object.Close()
		part := make([]byte, 99)
		_, err = object.ReadAt(part, 10*mib)
		check(err)
		must(bytes.Equal(part, body[10*mib:10*mib+99]), "the range differs")
		_, err = d.s3.CopyObject(ctx, minio.CopyDestOptions{Bucket: d.bucket, Object: "copied +%"}, minio.CopySrcOptions{Bucket: d.bucket, Object: "large"})
		check(err)
		must(bytes.Equal(d.get("copied +%"), body), "the copy differs")
	})
	d.step("odd_names"+suffix, func() {
		for _, key := range oddNames {
			d.put(key, []byte(key), minio.PutObjectOptions{})
			must(string(d.get(key)) == key, "%s differs", key)
		}
		found := 0
		for entry := range d.s3.ListObjects(ctx, d.bucket, minio.ListObjectsOptions{Prefix: "odd/", Recursive: true}) {
			check(entry.Err)
			found++
		}
		must(found == len(oddNames), "%d of them listed", found)
	})
	d.step("many_pages_and_delete_many"+suffix, func() {
		const many = 1203
		for n := range many {
			d.put(fmt.Sprintf("many/%05d", n), nil, minio.PutObjectOptions{})
		}
		entries := make(chan minio.ObjectInfo)
		go func() {
			defer close(entries)
			for entry := range d.s3.ListObjects(ctx, d.bucket, minio.ListObjectsOptions{Prefix: "many/", MaxKeys: 100}) {
				entries <- entry
			}
		}()
		for wrong := range d.s3.RemoveObjects(ctx, d.bucket, entries, minio.RemoveObjectsOptions{}) {
			check(wrong.Err)
		}
		for entry := range d.s3.ListObjects(ctx, d.bucket, minio.ListObjectsOptions{Prefix: "many/"}) {
			panic("still there: " + entry.Key)
		}
	})
	d.step("conditions"+suffix, func() {
		once := minio.PutObjectOptions{}
		once.SetMatchETagExcept("*")
		d.put("once", []byte("1"), once)
		_, err := d.s3.PutObject(ctx, d.bucket, "once", strings.NewReader("2"), 1, once)
		must(minio.ToErrorResponse(err).Code == "PreconditionFailed", "%v", err)
		_, err = d.s3.StatObject(ctx, d.bucket, "never-was", minio.StatObjectOptions{})
		must(minio.ToErrorResponse(err).Code == "NoSuchKey", "%v", err)
	})
	d.step("presigned"+suffix, func() {
		address, err := d.s3.PresignedPutObject(ctx, d.bucket, "signed +%", time.Minute)
		check(err)
		fetch("PUT", address, []byte("by url"))
		address, err = d.s3.PresignedGetObject(ctx, d.bucket, "signed +%", time.Minute, nil)
		check(err)
		must(string(fetch("GET", address, nil)) == "by url", "it differs")
	})
	d.step("delete_everything"+suffix, func() {
		for entry := range d.s3.ListObjects(ctx, d.bucket, minio.ListObjectsOptions{Recursive: true}) {
			check(d.s3.RemoveObject(ctx, d.bucket, entry.Key, minio.RemoveObjectOptions{}))
		}
		check(d.s3.RemoveBucket(ctx, d.bucket))
	})
}

func main() {
	address, err := url.Parse(os.Getenv("FLOTILLA_S3_ENDPOINT"))
	check(err)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/minio/minio-go/v7" {
				fmt.Println("version", module.Version)
			}
		}
	}
	failed := false
	for _, trailers := range []bool{false, true} {
		keys := credentials.NewStaticV4(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), "")
		s3, err := minio.New(address.Host, &minio.Options{Creds: keys, TrailingHeaders: trailers})
		check(err)
		d := day{s3: s3, bucket: fmt.Sprintf("day-%x", bytesOf(6))}
		d.run(trailers)
		failed = failed || d.failed
	}
	if failed {
		os.Exit(1)
	}
}
