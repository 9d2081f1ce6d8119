//! One client over several servers of a cluster: where one cannot be reached, the next is asked.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use kube::config::Kubeconfig;
use serde_json::Value;
use tower::service_fn;

/// The name of the extension of a kubeconfig's cluster that lists the others: `{"servers": ["https://HOST:PORT", …]}`.
const EXTENSION: &str = "wharfline.dev/servers";

/// The servers beside the one that a cluster of a kubeconfig names.
pub(super) fn others(kubeconfig: &Kubeconfig) -> Vec<String> {
    let current = kubeconfig.current_context.as_deref().unwrap_or_default();
    let context = kubeconfig.contexts.iter().find(|context| context.name == current);
    let cluster = context.and_then(|context| Some(&context.context.as_ref()?.cluster));
    let cluster = kubeconfig.clusters.iter().find(|known| Some(&known.name) == cluster);
    let extensions = cluster.and_then(|cluster| cluster.cluster.as_ref()?.extensions.as_ref());
    let listed = extensions.into_iter().flatten().filter(|extension| extension.name == EXTENSION);
    let urls = listed.filter_map(|extension| extension.extension.get("servers")?.as_array());
    urls.flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A client that asks one of these, and another from then on when it cannot be reached. Of what is not a read another is only
/// asked when the first could not be connected to: else it may have been done.
pub(super) fn several(clients: Vec<Client>) -> Client {
    let (clients, current) = (Arc::new(clients), Arc::new(AtomicUsize::new(0)));
    let service = service_fn(move |request: Request<Body>| {
        let (clients, current) = (Arc::clone(&clients), Arc::clone(&current));
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await?;
            let first = current.load(Ordering::Relaxed);
            let mut n = 0;
            loop {
                let at = (first + n) % clients.len();
                let answer =
                    clients[at].send(Request::from_parts(parts.clone(), bytes.to_vec().into())).await;
                n += 1;
                match answer {
                    Err(error)
                        if n < clients.len()
                            && (parts.method == Method::GET || was_not_connected(&error)) => {}
                    answer => {
                        current.store(at, Ordering::Relaxed);
                        return answer;
                    }
                }
            }
        }
    });
    Client::new(service, "default")
}

fn was_not_connected(error: &kube::Error) -> bool {
    let causes = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |e| e.source());
    let mut legacy = causes.filter_map(|cause| cause.downcast_ref::<hyper_util::client::legacy::Error>());
    legacy.any(hyper_util::client::legacy::Error::is_connect)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    const FILE: &str = "
apiVersion: v1
kind: Config
clusters:
- name: c
  cluster:
    server: https://a:1
    extensions:
    - name: other.dev/x
      extension: {servers: [https://x:1]}
    - name: wharfline.dev/servers
      extension: {servers: [https://b:1, https://c:1]}
- name: d
  cluster: {server: https://d:1}
contexts:
- name: c
  context: {cluster: c, user: u}
- name: d
  context: {cluster: d, user: u}
";

    #[test]
    fn the_current_cluster_names_the_others() {
        for (current, expected) in [("c", vec!["https://b:1", "https://c:1"]), ("d", vec![]), ("e", vec![])] {
            let text = format!("{FILE}current-context: {current}\n");
            assert_eq!(others(&Kubeconfig::from_yaml(&text).unwrap()), expected, "{current}");
        }
    }

    /// A client of a port.
    fn of(port: u16) -> Client {
        let mut config = kube::Config::new(format!("http://127.0.0.1:{port}").parse().unwrap());
        (config.proxy_url, config.default_retry) = (None, false);
        Client::try_from(config).unwrap()
    }

    async fn post(client: &Client) -> Result<u16, kube::Error> {
        let request = Request::post("/x").body(Body::from(b"body".to_vec())).unwrap();
        client.send(request).await.map(|answer| answer.status().as_u16())
    }

    #[tokio::test]
    async fn who_cannot_be_reached_is_passed_over_and_what_may_have_been_done_is_not_repeated() {
        let closed = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap().port();
        // It answers once, then hangs up on what was sent.
        let server = std::thread::spawn(move || {
            let mut asked = 0;
            for answer in ["HTTP/1.1 201 Created\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", ""] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4096];
                while !request.windows(4).any(|part| part == b"body") {
                    let _read = stream.read(&mut request).unwrap();
                }
                asked += 1;
                stream.write_all(answer.as_bytes()).unwrap();
            }
            asked
        });
        let client = several(vec![of(closed), of(open)]);
        assert_eq!(post(&client).await.unwrap(), 201);
        assert!(post(&client).await.is_err(), "it was sent, and is not sent to another");
        assert_eq!(server.join().unwrap(), 2);
        let nobody = several(vec![of(closed), of(closed)]);
        assert!(was_not_connected(&post(&nobody).await.unwrap_err()));
    }
}
