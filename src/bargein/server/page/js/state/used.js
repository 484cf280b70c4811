// Tokens and cost of a session so far, from the usage of each request.

export const NOTHING_USED = { requests: 0, input: 0, output: 0, cost: 0 };

function used(state, { usage }) {
  const { requests, input, output, cost } = state.used;
  return {
    ...state,
    used: {
      requests: requests + 1,
      input: input + (usage.input_tokens ?? 0),
      output: output + (usage.output_tokens ?? 0),
      cost: cost + (usage.cost ?? 0),
    },
  };
}

export const usedHandlers = { model_used: used };

/** Says tokens and cost in few words, as the terminal does; empty if no tokens were used. */
export function spentShort({ input_tokens: input = 0, output_tokens: output = 0, ...rest }) {
  const { priced = rest.cost ?? 0, unpriced = 0, estimated = false } = rest;
  const tokens = input + output;
  if (!tokens) return "";
  const many = tokens < 10_000 ? String(tokens) : `${Math.round(tokens / 1000)}k`;
  const words = `${estimated ? "about " : ""}${many} tokens`;
  if (!priced) return words;
  return `${words} · ${unpriced ? "at least " : ""}$${priced.toFixed(priced < 1 ? 4 : 2)}`;
}

/** Describes what a stop's receipt says was used: a `Spent` of the API. */
export function spentWords({ requests, input_tokens: input, output_tokens: output, ...rest }) {
  const { priced = 0, unpriced = 0, estimated = false } = rest;
  const words = [usedWords({ requests, input, output, cost: priced })].filter(Boolean);
  if (words.length && unpriced && priced) words.push(`${unpriced} without a known price`);
  if (words.length && estimated) words.push("partly estimated");
  return words.join(" · ");
}

/** Returns `12 requests · 34,000 tokens in, 5,100 out · $0.12`, or an empty text without requests.
 * Without a known cost, the price is left out. */
export function usedWords({ requests, input, output, cost }) {
  if (!requests) return "";
  const number = (value) => value.toLocaleString();
  const words = [
    `${requests} ${requests === 1 ? "request" : "requests"}`,
    `${number(input)} tokens in, ${number(output)} out`,
  ];
  if (cost > 0) words.push(`$${cost.toFixed(cost < 1 ? 4 : 2)}`);
  return words.join(" · ");
}
