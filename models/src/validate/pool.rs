//! The rules of pooling.

use super::{Checked, fail, refuse};
use crate::{BlockStyle, ModelConfig, Pool, Score};

impl ModelConfig {
    /// Checks the numbers of the pooling, and that `pool_score` has an effect.
    pub(super) fn check_pool(&self) -> Checked {
        let nothing = match self.pool {
            Pool::Queries(0) => Some("queries"),
            Pool::Recurrent { steps: 0 } => Some("recurrent.steps"),
            Pool::ClassQueries { depth: 0 } => Some("class_queries.depth"),
            _ => None,
        };
        if let Some(key) = nothing {
            return fail(format!("`pool.{key}` leaves nothing: it must be at least 1"));
        }
        refuse(
            matches!(self.pool, Pool::ClassQueries { .. }) && !self.head_hidden.is_empty(),
            "`pool = { class_queries = ... }` computes each logit from its own query by one layer: leave out `head_hidden`",
        )?;
        refuse(
            self.pool_score.is_some() && !self.pool.attends(),
            "`pool_score` is of a `pool` whose queries attend to the patches: attention, queries, recurrent or \
             class_queries",
        )?;
        refuse(
            self.pool_score.is_some_and(Score::hides_own_token),
            "`pool_score = \"locality\"` hides a token from itself, and the queries of a pooling are no tokens: choose \
             another one",
        )
    }

    /// Checks that a pooling of two depths has both.
    pub(super) fn check_two_depths(&self) -> Checked {
        let Pool::TwoDepths { early } = self.pool else { return Ok(()) };
        let depth = self.depth.sum();
        if early == 0 || early >= depth {
            return fail(format!(
                "`pool.two_depths.early` {early} must be at least 1 and less than `depth`, which is {depth}"
            ));
        }
        refuse(
            self.num_stages() > 1 || self.block == BlockStyle::PostNorm,
            "`pool = { two_depths = ... }` needs a single stage, and a final norm for the tokens of both depths: no blocks with `post_norm`",
        )
    }
}
