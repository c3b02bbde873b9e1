//! A store on loopback, and the environment of a process that uses it.

use std::net::SocketAddr;
use std::path::PathBuf;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

use super::files::Files;

pub const BUCKET: &str = "images";
pub const KEY: &str = "AKIACOWSLIPTEST";
pub const SECRET: &str = "this-is-secret-and-seen-nowhere";

/// Makes this process use the store at an address.
pub fn environment(address: SocketAddr) {
    for (name, value) in [
        ("AWS_ENDPOINT", format!("http://{address}").as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ] {
        #[allow(unsafe_code)]
        // SAFETY: every test of the process begins by waiting for this, and no thread looks at the environment before
        // that.
        unsafe {
            std::env::set_var(name, value);
        }
    }
}

/// [`Files`] over a folder, in threads of its own.
pub fn serve(root: PathBuf) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let mut builder = S3ServiceBuilder::new(Files {
                store: s3s_fs::FileSystem::new(&root).unwrap(),
                root,
                swapping: tokio::sync::Mutex::default(),
            });
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
            let service = builder.build().into_shared();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let Ok((socket, _)) = listener.accept().await else { continue };
                let service = service.clone();
                tokio::spawn(async move {
                    let http = Builder::new(TokioExecutor::new());
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        })
    });
    address
}
