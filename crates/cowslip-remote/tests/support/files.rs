//! s3s-fs, with two changes. It would read the whole object for its MD5 at each GET, unlike any real store, which takes
//! a hundred times as long as the range. And it ignores the conditions of a PUT.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use futures_util::stream;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput,
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    GetObjectInput, GetObjectOutput, ListObjectsV2Input, ListObjectsV2Output, PutObjectInput,
    PutObjectOutput, StreamingBlob, UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tokio::sync::Mutex;

pub struct Files {
    pub root: PathBuf,
    pub store: FileSystem,
    /// Serializes compare and swap.
    pub swapping: Mutex<()>,
}

macro_rules! as_s3s_fs {
    ($($name:ident: $input:ty => $output:ty),+ $(,)?) => {
        #[async_trait::async_trait]
        impl S3 for Files {
            $(async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                self.store.$name(request).await
            })+

            async fn get_object(
                &self,
                request: S3Request<GetObjectInput>,
            ) -> S3Result<S3Response<GetObjectOutput>> {
                self.get(&request.input)
            }

            async fn delete_objects(
                &self,
                request: S3Request<DeleteObjectsInput>,
            ) -> S3Result<S3Response<DeleteObjectsOutput>> {
                let keys =
                    request.input.delete.objects.iter().map(|object| object.key.clone()).collect();
                let deleted = self.store.delete_objects(request).await?;
                Ok(deleted.map_output(|output| all_deleted(output, keys)))
            }

            async fn put_object(
                &self,
                request: S3Request<PutObjectInput>,
            ) -> S3Result<S3Response<PutObjectOutput>> {
                let _swapping = self.swapping.lock().await;
                let path = self.root.join(&request.input.bucket).join(&request.input.key);
                let now = std::fs::metadata(path).ok().map(|metadata| tag(&metadata));
                let header = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
                let is_other = header("if-match").is_some_and(|tag| now.as_deref() != Some(tag));
                if is_other || (header("if-none-match").is_some() && now.is_some()) {
                    return Err(s3_error!(PreconditionFailed));
                }
                self.store.put_object(request).await
            }
        }
    };
}

as_s3s_fs! {
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput,
    upload_part: UploadPartInput => UploadPartOutput,
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput,
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput,
    delete_object: DeleteObjectInput => DeleteObjectOutput,
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output,
}

/// A store also reports absent objects as deleted.
fn all_deleted(mut output: DeleteObjectsOutput, keys: Vec<String>) -> DeleteObjectsOutput {
    let deleted = output.deleted.get_or_insert_default();
    for key in keys {
        if !deleted.iter().any(|object| object.key.as_ref() == Some(&key)) {
            deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() });
        }
    }
    output
}

impl Files {
    fn get(&self, input: &GetObjectInput) -> S3Result<S3Response<GetObjectOutput>> {
        let path = self.root.join(&input.bucket).join(&input.key);
        let found = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, file) = found.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound if !self.root.join(&input.bucket).is_dir() => {
                s3_error!(error, NoSuchBucket)
            }
            io::ErrorKind::NotFound => s3_error!(error, NoSuchKey),
            _ => s3_error!(error, InternalError),
        })?;
        let all = metadata.len();
        let range = input.range.map_or(Ok(0..all), |range| range.check(all))?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.read_exact_at(&mut bytes, range.start)
            .map_err(|error| s3_error!(error, InternalError))?;
        let content_range = format!("bytes {}-{}/{all}", range.start, range.end.saturating_sub(1));
        let content_length = bytes.len() as i64;
        let body = stream::iter([Ok::<_, io::Error>(bytes::Bytes::from(bytes))]);
        Ok(S3Response::new(GetObjectOutput {
            body: Some(StreamingBlob::wrap(body)),
            content_length: Some(content_length),
            content_range: input.range.map(|_| content_range),
            e_tag: Some(tag(&metadata)),
            last_modified: metadata.modified().ok().map(Into::into),
            ..GetObjectOutput::default()
        }))
    }
}

fn tag(metadata: &Metadata) -> String {
    format!("\"{:x}-{:x}-{:x}\"", metadata.ino(), metadata.mtime_nsec(), metadata.len())
}
