//! What the contract calls alpha is sent only where that was switched on.
use wharfline::csi::Advice;

use super::*;

/// Obligation CO-GEN-30.
#[tokio::test]
async fn what_is_alpha_is_not_sent_unless_it_is_switched_on() {
    assert_eq!(PluginOptions::default().alpha, Alpha::Off);
    let bench = Bench::with(Config::everything(), PluginOptions::default().alpha);
    // The plugin complains of each call and field that is alpha.
    bench.backend.configure(|config| config.alpha = false);
    for rpc in Rpc::ALL.iter().copied().filter(|rpc| rpc.is_alpha()) {
        let failure = call(&bench.plugin, rpc, "vol-1", LONG).await.unwrap_err();
        assert!(failure.is_unsent() && !failure.is_uncertain(), "{failure}");
        assert_eq!((failure.advice(), failure.remedy()), (Advice::Unsupported, Remedy::Unsupported));
    }
    assert_eq!(bench.backend.calls().len(), 0);

    bench.backend.add_volume("vol-1", BTreeMap::new());
    let secrets = [("password".to_owned(), "hunter22".to_owned())];
    let mut way = Way { secrets: secrets.into(), ..Way::new("vol-1", "node-a") };
    let attached = bench.plugin.controller_publish_volume(way.attach(), LONG).await.unwrap();
    way.publish_context = attached.publish_context;
    bench.plugin.node_stage_volume(way.stage(), LONG).await.unwrap();
    bench.plugin.controller_expand_volume(way.expand(10), LONG).await.unwrap();
    bench.plugin.node_expand_volume(way.node_expand("/staging", 10), LONG).await.unwrap();
    bench.backend.assert_lawful();

    let bench = Bench::with(Config::everything(), Alpha::On);
    for rpc in Rpc::ALL.iter().copied().filter(|rpc| rpc.is_alpha()) {
        let failure = call(&bench.plugin, rpc, "vol-1", LONG).await.unwrap_err();
        assert!(failure.is_not_found(), "it was sent: {failure}");
    }
}

/// The secrets of NodeExpandVolume, the one alpha field of a request, do arrive where alpha is on.
#[tokio::test]
async fn an_alpha_field_is_sent_where_that_is_switched_on() {
    let bench = Bench::with(Config::everything(), Alpha::On);
    let secrets: BTreeMap<_, _> = [("password".to_owned(), "hunter22".to_owned())].into();
    let way = Way { secrets: secrets.clone(), ..Way::new("vol-1", "node-a") };
    bench.backend.next(Rpc::NodeExpandVolume, Answer::reply(&proto::NodeExpandVolumeResponse::default()));
    assert_eq!(bench.plugin.node_expand_volume(way.node_expand("/t", 10), LONG).await, Ok(None));
    let asked = bench.backend.calls().remove(0).ask;
    assert!(matches!(asked, support::scripted::Ask::NodeExpandVolume(request) if request.secrets == secrets));
}
