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
