//! `config`: checks configuration files, or shows the settings from files and environment.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Parser;
use nine_net::rt;

use crate::cli::{Cli, Config as Args, ConfigVerb, Verb};
use crate::config::{Config, General, files};
use crate::dial;
use crate::output::Output;
use crate::serve::{self, Space};

pub fn run(args: Args, general: &General) -> Result<()> {
    let mut out = Output::new();
    match args.verb {
        ConfigVerb::Check { file: Some(file), space } => {
            let config = Config::read(&file)?;
            beside(&config).with_context(|| file.display().to_string())?;
            out.print(format_args!("{}: good\n", file.display()))?;
            tree(space.as_deref(), &config, &mut out)?;
        }
        ConfigVerb::Check { file: None, space } => {
            let present: Vec<_> = files(general).into_iter().filter(|path| path.exists()).collect();
            if present.is_empty() {
                let looked: Vec<_> = files(general).iter().map(|path| path.display().to_string()).collect();
                if general.config.is_some() {
                    bail!("{}: No such file or directory", looked.concat());
                }
                out.print(format_args!("no configuration: neither {}\n", looked.join(" nor ")))?;
            }
            for file in &present {
                Config::read(file)?;
            }
            beside(&Config::load(general)?)?;
            for file in present {
                out.print(format_args!("{}: good\n", file.display()))?;
            }
            tree(space.as_deref(), &Config::load(general)?, &mut out)?;
        }
        ConfigVerb::Show => {
            let mut config = Config::load(general)?;
            config.log = general.log.or(config.log);
            config.log_format = general.log_format.or(config.log_format);
            // Parse the verbs without options, to add the settings from the environment.
            if let Verb::Ls(ls) = Cli::try_parse_from(["ninefold", "ls"])?.verb {
                config.client = config.remote(&ls.remote)?;
            }
            if let Verb::Serve(serve) = Cli::try_parse_from(["ninefold", "serve"])?.verb {
                config.serve = config.serving(&serve.serving)?;
            }
            out.print(toml::to_string(&config)?)?;
        }
    }
    out.flush()
}

/// Checks a name space file; opens and dials nothing.
fn tree(file: Option<&Path>, config: &Config, out: &mut Output) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    Space::read(file, &config.remote_of_server()?)?;
    out.print(format_args!("{}: good\n", file.display()))
}

/// Checks the files of certificates, keys and exports that the configuration names.
fn beside(config: &Config) -> Result<()> {
    serve::certificate(&rt::Real, &config.serve)?;
    config.serve.exports.as_deref().map_or(Ok(()), serve::check_exports)?;
    dial::trust(&config.client)?;
    Ok(())
}
