// The AWS SDK for Java, version 2: the synchronous client and the presigner.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import software.amazon.awssdk.core.ResponseInputStream;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.core.util.VersionInfo;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.S3Configuration;
import software.amazon.awssdk.services.s3.model.*;
import software.amazon.awssdk.services.s3.presigner.S3Presigner;

public class Day {
    static final int MIB = 1 << 20;
    static final int MANY = 1203;
    static final String BUCKET = "day-" + UUID.randomUUID().toString().substring(0, 12);
    static final URI ENDPOINT = URI.create(System.getenv("FLOTILLA_S3_ENDPOINT"));
    static final S3Client S3 = S3Client.builder().endpointOverride(ENDPOINT).region(Region.US_EAST_1).forcePathStyle(true).build();
    static final List<String> ODD = List.of(
        "odd/with space", "odd/plus+plus", "odd/100%", "odd/%41", "odd/a//b", "odd/é/日本語/🚢", "odd/a&b<c>\"d'", "odd/?query#hash",
        "odd/" + "x".repeat(1000));
    static boolean failed = false;

    interface Step { void run() throws Exception; }

    static void step(String name, Step does) {
        long begun = System.nanoTime();
        try {
            does.run();
            System.out.printf("ok %s  %.1f s%n", name, (System.nanoTime() - begun) / 1e9);
        } catch (Throwable why) {
            why.printStackTrace(System.out);
            System.out.println("FAILED " + name);
            failed = true;
        }
    }

    static void must(boolean ok, String why) {
        if (!ok) throw new AssertionError(why);
    }

    static void refused(Step call, int status) throws Exception {
        try {
            call.run();
        } catch (S3Exception error) {
            must(error.statusCode() == status, "expected " + status + ", got " + error);
            return;
        }
        throw new AssertionError("expected " + status + ", and the call succeeded");
    }

    static byte[] bytes(int count) {
        byte[] data = new byte[count];
        new Random(count).nextBytes(data);
        return data;
    }

    static PutObjectResponse put(String key, byte[] body) {
        return S3.putObject(request -> request.bucket(BUCKET).key(key), RequestBody.fromBytes(body));
    }

    static byte[] get(String key) {
        return S3.getObjectAsBytes(request -> request.bucket(BUCKET).key(key)).asByteArray();
    }

    static List<String> list(String prefix, int page) {
        List<String> keys = new ArrayList<>();
        S3.listObjectsV2Paginator(request -> request.bucket(BUCKET).prefix(prefix).maxKeys(page)).contents().forEach(entry -> keys.add(entry.key()));
        return keys;
    }

    static String fetch(HttpRequest request) throws Exception {
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        must(answer.statusCode() == 200, answer.statusCode() + ": " + answer.body());
        return answer.body();
    }

    public static void main(String[] arguments) {
        System.out.println("version " + VersionInfo.SDK_VERSION);
        step("make_bucket", () -> S3.createBucket(request -> request.bucket(BUCKET)));
        step("put_and_get", () -> {
            for (int size : new int[] {0, 1, 65537, 5 * MIB}) {
                put("size/" + size, bytes(size));
                must(Arrays.equals(get("size/" + size), bytes(size)), size + " bytes differ");
            }
            byte[] part = S3.getObjectAsBytes(request -> request.bucket(BUCKET).key("size/65537").range("bytes=65530-")).asByteArray();
            must(part.length == 7, "the range differs");
        });
        step("checksums_and_metadata", () -> {
            for (ChecksumAlgorithm algorithm : List.of(ChecksumAlgorithm.CRC32, ChecksumAlgorithm.SHA1, ChecksumAlgorithm.SHA256)) {
                S3.putObject(request -> request.bucket(BUCKET).key("summed").checksumAlgorithm(algorithm).metadata(Map.of("who", "b")), RequestBody.fromString("sum"));
            }
            HeadObjectResponse head = S3.headObject(request -> request.bucket(BUCKET).key("summed").checksumMode(ChecksumMode.ENABLED));
            must(head.metadata().equals(Map.of("who", "b")) && head.checksumSHA256() != null, head.toString());
        });
        step("large_by_parts", () -> {
            byte[] body = bytes(23 * MIB + 5);
            String upload = S3.createMultipartUpload(request -> request.bucket(BUCKET).key("large")).uploadId();
            List<CompletedPart> parts = new ArrayList<>();
            for (int n = 1, from = 0; from < body.length; n++, from += 8 * MIB) {
                int number = n;
                byte[] part = Arrays.copyOfRange(body, from, Math.min(body.length, from + 8 * MIB));
                String etag = S3.uploadPart(request -> request.bucket(BUCKET).key("large").uploadId(upload).partNumber(number), RequestBody.fromBytes(part)).eTag();
                parts.add(CompletedPart.builder().partNumber(n).eTag(etag).build());
            }
            S3.completeMultipartUpload(request -> request.bucket(BUCKET).key("large").uploadId(upload).multipartUpload(all -> all.parts(parts)));
            try (ResponseInputStream<GetObjectResponse> back = S3.getObject(request -> request.bucket(BUCKET).key("large"))) {
                must(Arrays.equals(back.readAllBytes(), body), "bytes differ");
            }
            S3.copyObject(request -> request.sourceBucket(BUCKET).sourceKey("large").destinationBucket(BUCKET).destinationKey("copied +%"));
            must(Arrays.equals(get("copied +%"), body), "the copy differs");
        });
        step("odd_names", () -> {
            for (String key : ODD) {
                put(key, key.getBytes("UTF-8"));
                must(new String(get(key), "UTF-8").equals(key), key);
            }
            must(new HashSet<>(list("odd/", 3)).equals(new HashSet<>(ODD)), "" + list("odd/", 3));
        });
        step("many_pages_and_delete_many", () -> {
            for (int n = 0; n < MANY; n++) put(String.format("many/%05d", n), new byte[0]);
            List<String> keys = list("many/", 100);
            must(keys.size() == MANY, keys.size() + " listed");
            for (List<String> some : List.of(keys.subList(0, 1000), keys.subList(1000, MANY))) {
                List<ObjectIdentifier> objects = new ArrayList<>();
                some.forEach(key -> objects.add(ObjectIdentifier.builder().key(key).build()));
                must(!S3.deleteObjects(request -> request.bucket(BUCKET).delete(all -> all.objects(objects))).hasErrors(), "errors");
            }
            must(list("many/", 100).isEmpty(), "still there");
        });
        step("conditions", () -> {
            String etag = S3.putObject(request -> request.bucket(BUCKET).key("once").ifNoneMatch("*"), RequestBody.fromString("1")).eTag();
            refused(() -> S3.putObject(request -> request.bucket(BUCKET).key("once").ifNoneMatch("*"), RequestBody.fromString("2")), 412);
            S3.putObject(request -> request.bucket(BUCKET).key("once").ifMatch(etag), RequestBody.fromString("3"));
            refused(() -> S3.putObject(request -> request.bucket(BUCKET).key("once").ifMatch(etag), RequestBody.fromString("4")), 412);
            refused(() -> get("never-was"), 404);
        });
        step("presigned", () -> {
            S3Configuration style = S3Configuration.builder().pathStyleAccessEnabled(true).build();
            try (S3Presigner signer = S3Presigner.builder().endpointOverride(ENDPOINT).region(Region.US_EAST_1).serviceConfiguration(style).build()) {
                Duration minute = Duration.ofMinutes(1);
                URI to = signer.presignPutObject(all -> all.signatureDuration(minute).putObjectRequest(request -> request.bucket(BUCKET).key("signed +%"))).url().toURI();
                fetch(HttpRequest.newBuilder(to).PUT(HttpRequest.BodyPublishers.ofString("by url")).build());
                URI from = signer.presignGetObject(all -> all.signatureDuration(minute).getObjectRequest(request -> request.bucket(BUCKET).key("signed +%"))).url().toURI();
                must(fetch(HttpRequest.newBuilder(from).build()).equals("by url"), "it differs");
            }
        });
        step("delete_everything", () -> {
            for (String key : list("", 1000)) S3.deleteObject(request -> request.bucket(BUCKET).key(key));
            S3.deleteBucket(request -> request.bucket(BUCKET));
            refused(() -> S3.headBucket(request -> request.bucket(BUCKET)), 404);
        });
        System.exit(failed ? 1 : 0);
    }
}
