//! Where a node tells its figures: a listener of plain HTTP with nothing but `/metrics`, if one is asked for.
use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;

use super::join::STATS_PERIOD;
use super::vacancy;
use crate::node::{FigureNames, Figures};

/// The shortest time between two measurements: each is a call for every volume.
const SHORTEST: Duration = Duration::from_secs(1);

/// Arguments of `wharfline up` and `wharfline node`.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Where this node tells its figures, as plain HTTP and to whoever asks, at /metrics: how full volumes are, how they and
    /// the plugins are. Nowhere when not given
    #[arg(long, value_name = "ADDR:PORT")]
    pub metrics_listen: Option<SocketAddr>,
    /// Tell how full volumes are under the names of the kubelet, too
    #[arg(long, requires = "metrics_listen")]
    pub metrics_kubelet_names: bool,
    /// Between two measurements of how full volumes are, such as 30s or 5m; off for none; 1m when not given
    #[arg(long, value_name = "DURATION", value_parser = period)]
    pub volume_stats_period: Option<Period>,
}

/// Between two measurements; absent for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(Option<Duration>);

fn period(text: &str) -> Result<Period, String> {
    if text == "off" {
        return Ok(Period(None));
    }
    let period = crate::api::quantity::duration(text).filter(|period| *period >= SHORTEST);
    period
        .map(|period| Period(Some(period)))
        .ok_or_else(|| "write 30s, 5m or off; 1s is the least".to_owned())
}

/// A listener of a node's figures.
pub(super) struct Told {
    listener: Option<TcpListener>,
    figures: Figures,
    names: FigureNames,
}

impl Args {
    /// How long between two measurements; absent for none.
    pub(super) fn period(&self) -> Option<Duration> {
        self.volume_stats_period.map_or(Some(STATS_PERIOD), |Period(period)| period)
    }

    /// Listens, if that is asked for.
    pub(super) async fn listen(&self) -> anyhow::Result<Told> {
        let listener = match self.metrics_listen {
            Some(at) => Some(vacancy::listen(at, "--metrics-listen").await?),
            None => None,
        };
        let names = if self.metrics_kubelet_names { FigureNames::AndKubelets } else { FigureNames::Own };
        Ok(Told { listener, figures: Figures::default(), names })
    }
}

impl Told {
    /// What the daemon is to fill.
    pub(super) fn figures(&self) -> Figures {
        self.figures.clone()
    }

    /// Answers whoever asks. Never returns; dropped, it stops.
    pub(super) async fn serve(self) {
        let Self { listener: Some(listener), figures, names } = self else {
            return pending().await;
        };
        let metrics = move || {
            let text = figures.text(names);
            async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text) }
        };
        let served = axum::serve(listener, Router::new().route("/metrics", get(metrics))).await;
        if let Err(error) = served {
            tracing::warn!(error = &error as &dyn std::error::Error, "figures are not told any more");
        }
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_duration_or_off() {
        for (text, expected) in [
            ("off", Some(Period(None))),
            ("1s", Some(Period(Some(Duration::from_secs(1))))),
            ("5m", Some(Period(Some(Duration::from_secs(300))))),
            ("999ms", None),
            ("0s", None),
            ("30", None),
            ("", None),
        ] {
            assert_eq!(period(text).ok(), expected, "{text}");
        }
        assert_eq!(Args::default().period(), Some(STATS_PERIOD));
    }
}
