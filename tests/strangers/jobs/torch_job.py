import torch
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(1000, 4000), torch.nn.ReLU(), torch.nn.Linear(4000, 1000))
best = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(256, 1000)
for _ in range(5):
    best.zero_grad()
    loss = (model(x) - x).square().mean()
    loss.backward()
    best.step()
    print(f"{loss.item():.6f}")
