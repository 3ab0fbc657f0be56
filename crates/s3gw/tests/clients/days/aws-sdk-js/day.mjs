// The AWS SDK for JavaScript, version 3.
import { CopyObjectCommand, CreateBucketCommand, DeleteBucketCommand, DeleteObjectCommand, DeleteObjectsCommand, GetObjectCommand, HeadObjectCommand, ListObjectsV2Command, PutObjectCommand, S3Client, paginateListObjectsV2 } from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { Readable } from "node:stream";

const MIB = 1 << 20;
const MANY = 1203;
const Bucket = "day-" + randomBytes(6).toString("hex");
const s3 = new S3Client({ endpoint: process.env.FLOTILLA_S3_ENDPOINT, region: "us-east-1", forcePathStyle: true });
const oddKeys = [
    "odd/with space", "odd/plus+plus", "odd/100%", "odd/%41", "odd/a//b", "odd/é/日本語/🚢", "odd/a&b<c>\"d'", "odd/?query#hash",
    "odd/" + "x".repeat(1000),
];
const put = (Key, Body, more) => s3.send(new PutObjectCommand({ Bucket, Key, Body, ...more }));
const get = async (Key, more) => Buffer.from(await (await s3.send(new GetObjectCommand({ Bucket, Key, ...more }))).Body.transformToByteArray());
const refused = (call, name) => assert.rejects(call, (error) => error.name === name || assert.fail(`${error.name}: ${error.message}`));
const list = async (Prefix, pageSize) => {
    const keys = [];
    for await (const page of paginateListObjectsV2({ client: s3, pageSize }, { Bucket, Prefix })) keys.push(...(page.Contents ?? []).map((entry) => entry.Key));
    return keys;
};

const steps = {
    async make_bucket() {
        await s3.send(new CreateBucketCommand({ Bucket }));
    },
    async put_and_get() {
        for (const size of [0, 1, 65537, 5 * MIB]) {
            const body = randomBytes(size);
            await put(`size/${size}`, body, { ContentType: "text/x-day", Metadata: { who: "b" } });
            assert.ok((await get(`size/${size}`)).equals(body), `${size} bytes differ`);
        }
        assert.equal((await get("size/65537", { Range: "bytes=65530-" })).length, 7);
        const head = await s3.send(new HeadObjectCommand({ Bucket, Key: "size/1", ChecksumMode: "ENABLED" }));
        assert.deepEqual([head.ContentType, head.Metadata], ["text/x-day", { who: "b" }]);
        assert.ok(head.ChecksumCRC32 || head.ChecksumCRC64NVME, "no checksum by default");
    },
    async checksums() {
        for (const ChecksumAlgorithm of ["CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"]) {
            const sent = await put("summed", "sum", { ChecksumAlgorithm });
            assert.ok(sent[`Checksum${ChecksumAlgorithm}`], ChecksumAlgorithm);
        }
    },
    async large_by_parts_from_a_stream() {
        const body = randomBytes(23 * MIB + 5);
        const pieces = Array.from({ length: 24 }, (_, n) => body.subarray(n * MIB, (n + 1) * MIB));
        await new Upload({ client: s3, params: { Bucket, Key: "large", Body: Readable.from(pieces) } }).done();
        assert.ok((await get("large")).equals(body), "bytes differ");
        await s3.send(new CopyObjectCommand({ Bucket, Key: "copied +%", CopySource: `${Bucket}/large` }));
        assert.ok((await get("copied +%")).equals(body), "the copy differs");
    },
    async odd_names() {
        for (const key of oddKeys) {
            await put(key, key);
            assert.equal((await get(key)).toString(), key);
        }
        assert.deepEqual(new Set(await list("odd/")), new Set(oddKeys));
    },
    async many_pages_and_delete_many() {
        const keys = Array.from({ length: MANY }, (_, n) => `many/${String(n).padStart(5, "0")}`);
        for (let n = 0; n < MANY; n += 20) await Promise.all(keys.slice(n, n + 20).map((key) => put(key, key)));
        assert.deepEqual(await list("many/", 100), keys);
        for (const some of [keys.slice(0, 1000), keys.slice(1000)]) {
            const done = await s3.send(new DeleteObjectsCommand({ Bucket, Delete: { Objects: some.map((Key) => ({ Key })) } }));
            assert.equal(done.Errors, undefined);
        }
        assert.deepEqual(await list("many/"), []);
    },
    async conditions() {
        const { ETag } = await put("once", "1", { IfNoneMatch: "*" });
        await refused(put("once", "2", { IfNoneMatch: "*" }), "PreconditionFailed");
        await put("once", "3", { IfMatch: ETag });
        await refused(put("once", "4", { IfMatch: ETag }), "PreconditionFailed");
        await refused(get("never-was"), "NoSuchKey");
    },
    async presigned() {
        const Key = "signed +%";
        const to = await getSignedUrl(s3, new PutObjectCommand({ Bucket, Key }), { expiresIn: 60 });
        const sent = await fetch(to, { method: "PUT", body: "by url" });
        assert.equal(sent.status, 200, await sent.text());
        const from = await fetch(await getSignedUrl(s3, new GetObjectCommand({ Bucket, Key }), { expiresIn: 60 }));
        assert.equal(await from.text(), "by url");
    },
    async delete_everything() {
        for (const Key of await list("")) await s3.send(new DeleteObjectCommand({ Bucket, Key }));
        await s3.send(new DeleteBucketCommand({ Bucket }));
        await refused(s3.send(new ListObjectsV2Command({ Bucket })), "NoSuchBucket");
    },
};

console.log("version", JSON.parse(readFileSync("node_modules/@aws-sdk/client-s3/package.json")).version);
for (const [name, does] of Object.entries(steps)) {
    const begun = Date.now();
    try {
        await does();
        console.log(`ok ${name}  ${((Date.now() - begun) / 1000).toFixed(1)} s`);
    } catch (error) {
        console.log(error);
        console.log(`FAILED ${name}`);
        process.exitCode = 1;
    }
}
