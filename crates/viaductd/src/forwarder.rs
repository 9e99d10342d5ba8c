//! The executor of this daemon: the engine, or a card with the engine beside it.

use anyhow::Context;
use carryover::Table;
use config::Host;
use engine::{Engine, EngineConfig};
use executor::Executor;
use mem::Opened;
use model::VifId;
use std::error::Error;
use std::sync::Arc;
use tables::Flows;

#[derive(Clone)]
pub enum Forwarder {
    Cpu(Arc<Engine>),
    #[cfg(feature = "card-sim")]
    CardSim(Arc<offload::CardExecutor>, Arc<Engine>),
}

impl Forwarder {
    /// Starts the executor that the host is configured to have. Its connections are in `flows`, if given.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start(host: &Host, flows: Option<Table>) -> anyhow::Result<Self> {
        let workers: Vec<_> = host.workers.iter().map(|core| Some(usize::from(*core))).collect();
        let workers = if workers.is_empty() { vec![None] } else { workers };
        let config = EngineConfig { workers, ..EngineConfig::default() };
        let flows = match flows {
            Some(table) => Flows::kept_in(config.flows, table),
            None => Flows::new(config.flows),
        };
        let engine = Engine::with_flows(&config, flows).context("the workers can't be started")?;
        match host.executor {
            config::Executor::Cpu => Ok(Self::Cpu(engine)),
            #[cfg(feature = "card-sim")]
            config::Executor::CardSim => {
                let open = || card::sim::SimCard::new(hbm::Timing::hbm2());
                let card = offload::CardExecutor::start("card-sim", engine.clone(), open)
                    .context("the simulated card can't be started")?;
                Ok(Self::CardSim(card, engine))
            }
            #[cfg(not(feature = "card-sim"))]
            config::Executor::CardSim => anyhow::bail!("this build has no card-sim; use \"cpu\""),
        }
    }

    pub fn executor(&self) -> Arc<dyn Executor> {
        match self {
            Self::Cpu(engine) => engine.clone(),
            #[cfg(feature = "card-sim")]
            Self::CardSim(card, _) => card.clone(),
        }
    }

    /// Returns the engine, which knows all tables.
    pub const fn engine(&self) -> &Arc<Engine> {
        match self {
            Self::Cpu(engine) => engine,
            #[cfg(feature = "card-sim")]
            Self::CardSim(_, engine) => engine,
        }
    }

    /// Is true if guests may leave checksums and segmentation to us. A card does neither.
    pub const fn finishes(&self) -> bool {
        matches!(self, Self::Cpu(_))
    }

    /// Starts moving packets through this port.
    ///
    /// # Errors
    /// The interface has a port already, or can't have one.
    pub fn attach(&self, vif: VifId, port: Opened) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Cpu(engine) => Ok(engine.attach(vif, port)?),
            #[cfg(feature = "card-sim")]
            Self::CardSim(card, _) => Ok(card.attach(vif, port)?),
        }
    }

    /// Checks that a new daemon can take over from this executor.
    ///
    /// # Errors
    /// There is a card.
    pub fn is_movable(&self) -> anyhow::Result<()> {
        match self {
            Self::Cpu(_) => Ok(()),
            #[cfg(feature = "card-sim")]
            Self::CardSim(..) => anyhow::bail!("a card can't be handed over; restart the daemon"),
        }
    }

    /// Leaves packets in their queues; see [`Engine::pause`].
    ///
    /// # Errors
    /// A worker is stalled, or there is a card.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.is_movable()?;
        Ok(self.engine().pause()?)
    }

    /// Does the same before there are any ports. A card moves packets all the same.
    ///
    /// # Errors
    /// A worker is stalled.
    pub fn hold(&self) -> anyhow::Result<()> {
        match self {
            Self::Cpu(engine) => Ok(engine.pause()?),
            #[cfg(feature = "card-sim")]
            Self::CardSim(..) => Ok(()),
        }
    }

    /// Moves packets again.
    pub fn resume(&self) {
        self.engine().resume();
    }

    pub fn detach(&self, vif: VifId) {
        match self {
            Self::Cpu(engine) => engine.detach(vif),
            #[cfg(feature = "card-sim")]
            Self::CardSim(card, _) => card.detach(vif),
        };
    }
}
